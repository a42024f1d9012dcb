//! No allocation happens between the first and the last token, on any thread.

#![allow(unsafe_code)]

#[path = "../../runtime/tests/support/mod.rs"]
mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

use support::{Recipe, tiny_image};
use tessera::engine::{EngineOptions, Io, Kv, OpenImage, start};
use tessera::generate::Generator;
use tessera::metrics::Recorder;
use tessera::options::GenerateArgs;
use tessera::planning::{Device, make_plan};
use tessera_runtime::profile::DeviceProfile;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

struct Counting;

// SAFETY: every call is handed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// One test only: a second one would count beside it.
#[test]
fn no_token_allocates() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.image");
    for n_experts in [0, 4] {
        std::fs::write(
            &path,
            tiny_image(&Recipe {
                n_experts,
                ..Recipe::default()
            }),
        )
        .unwrap();
        let model = OpenImage::open(&path).unwrap();
        for io in [Io::Auto, Io::Pread, Io::Buffered] {
            let mut options = EngineOptions {
                context: Some(96),
                lanes: Some(2),
                sequences: Some(3),
                kv: if n_experts == 0 { Kv::F16 } else { Kv::Q8 },
                logits_rows: 1,
                io,
                memory_bytes: Some(1),
                ..EngineOptions::default()
            };
            let device = Device {
                profile: DeviceProfile::default(),
                path: None,
            };
            let error = make_plan(&model, &options, &device, 2)
                .err()
                .unwrap()
                .to_string();
            let least = error
                .split(' ')
                .filter_map(|word| word.parse::<u64>().ok())
                .max();
            for memory in [least.unwrap(), 1 << 30] {
                options.memory_bytes = Some(memory);
                let (mut session, _) = start(&model, &options).unwrap();
                session.load(&mut |_, _| {}).unwrap();
                let generate = GenerateArgs {
                    max_tokens: 40,
                    temp: 0.8,
                    ..Default::default()
                };
                let vocab_size = session.image().shape().vocab_size;
                let mut generator = Generator::new(&generate, vocab_size, 96, Vec::new());
                let mut recorder = Recorder::with_capacity(96);
                generator.history.reserve(96);
                session.append(&[1, 2, 3]).unwrap();
                session.truncate(0);
                let before = ALLOCATIONS.load(Ordering::Relaxed);
                let mut emit = |_: &str| Ok(());
                generator
                    .run(&mut session, &[5, 6, 7, 8], None, &mut recorder, &mut emit)
                    .unwrap();
                let mut seen = 0;
                for step in 0..9 {
                    let steps = [(2, step), (0, 30 + step), (1, 60)];
                    session.decode(&steps, &mut |_, _| seen += 1).unwrap();
                }
                assert_eq!(seen, 27);
                let count = ALLOCATIONS.load(Ordering::Relaxed) - before;
                assert_eq!(generator.output.len(), 40);
                assert_eq!(count, 0, "{io:?}, {memory} bytes, {n_experts} experts");
            }
        }
    }
    assert!(
        ALLOCATIONS.load(Ordering::Relaxed) > 100,
        "the counter counts"
    );
}
