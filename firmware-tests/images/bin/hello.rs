//! The machine starts, and computes.
#![no_std]
#![no_main]

use images::say;
use tessera_kernels::Kernels;

images::image!(run);

fn run() {
    say!("hello");
    // Sums and products that need the vector unit where the build uses one.
    let a: [f32; 64] = core::array::from_fn(|i| i as f32 * 0.25 - 8.0);
    let b: [f32; 64] = core::array::from_fn(|i| 3.5 - i as f32 * 0.125);
    for kernels in Kernels::available() {
        let dot = (kernels.dot)(&a, &b);
        assert_eq!(
            dot.to_bits(),
            (Kernels::SCALAR.dot)(&a, &b).to_bits(),
            "{}",
            kernels.name
        );
    }
    say!("dot {:08x}", (Kernels::best().dot)(&a, &b).to_bits());
    let crc = (Kernels::best().crc32c)(0, b"123456789");
    say!("crc32c {crc:08x}");
}
