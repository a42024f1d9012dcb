//! Never ends: the tests must notice.
#![no_std]
#![no_main]

images::image!(run);

fn run() {
    images::say!("begun");
    loop {
        core::hint::spin_loop();
    }
}
