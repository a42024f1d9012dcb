//! No allocation happens between the first and the last token, on any thread.

#![allow(unsafe_code)]

#[path = "../../runtime/tests/support/mod.rs"]
mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use support::{Predictors, Recipe, tiny_image};
use tessera::engine::{EngineOptions, Io, Kv, OpenImage, start};
use tessera::generate::Generator;
use tessera::metrics::Recorder;
use tessera::options::GenerateArgs;
use tessera::planning::{Device, make_plan};
use tessera::pressure::Yielding;
use tessera_hal::linux::DontNeed;
use tessera_kernels::Activation;
use tessera_runtime::Mode;
use tessera_runtime::planner::ColdWish;
use tessera_runtime::profile::DeviceProfile;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
/// The test has begun.
static BEGUN: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// A thread of the harness, which prints something when a test takes a minute.
    static IS_HARNESS: Cell<bool> = const { Cell::new(false) };
}

fn count() {
    if !BEGUN.load(Ordering::Relaxed) {
        IS_HARNESS.set(true);
    } else if !IS_HARNESS.get() {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    }
}

struct Counting;

// SAFETY: every call is handed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// One test only: a second one would count beside it.
#[test]
fn no_token_allocates() {
    BEGUN.store(true, Ordering::Relaxed);
    IS_HARNESS.set(false);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.image");
    let cases = [
        (0, Mode::Exact, 0),
        (4, Mode::Exact, 0),
        (0, Mode::Predict, 0),
        (4, Mode::Predict, 0),
        (0, Mode::Predict, 50),
        (0, Mode::Threshold, 0),
    ];
    let (mut asked, mut given) = (0, 0);
    for (n_experts, mode, absent_loss_pml) in cases {
        std::fs::write(
            &path,
            tiny_image(&Recipe {
                n_experts,
                activation: match mode {
                    Mode::Predict => Activation::Relu,
                    Mode::Exact | Mode::Threshold => Activation::Silu,
                },
                predictors: Predictors::Some,
                threshold: Some(0.1),
                ..Recipe::default()
            }),
        )
        .unwrap();
        let model = OpenImage::open(&path).unwrap();
        for io in [Io::Auto, Io::Pread, Io::Buffered] {
            let mut options = EngineOptions {
                context: Some(96),
                lanes: Some(2),
                sequences: Some(if absent_loss_pml > 0 { 1 } else { 3 }),
                kv: if n_experts == 0 { Kv::F16 } else { Kv::Q8 },
                logits_rows: 1,
                io,
                memory_bytes: Some(1),
                mode,
                // A cache needs memory that many tokens at once would take.
                batch_tokens: (mode == Mode::Predict).then_some(8),
                cold: ColdWish {
                    absent_loss_pml,
                    ..ColdWish::default()
                },
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
            let least = least.unwrap();
            options.memory_bytes = Some(1 << 30);
            let roomy = make_plan(&model, &options, &device, 2).unwrap().plan;
            for memory in [least, least + roomy.kept_bytes / 4 * 3, 1 << 30] {
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
                // Every other look finds memory short.
                let mut looks = 0;
                generator.yielding = Some(Yielding::new(Box::new(move || {
                    looks += 1;
                    looks % 2 == 0
                })));
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
                    let steps = match session.plan().sizes.sequences {
                        1 => &steps[1..2],
                        _ => &steps[..],
                    };
                    session.decode(steps, &mut |_, _| seen += 1).unwrap();
                }
                assert_eq!(seen, 9 * session.plan().sizes.sequences);
                let taken = session.grow(usize::MAX, &DontNeed);
                let yielded = generator.yielding.as_ref().map(Yielding::given_bytes);
                assert_eq!(yielded, Some((taken, taken)));
                (asked, given) = (asked + 1, given + usize::from(taken > 0));
                let count = ALLOCATIONS.load(Ordering::Relaxed) - before;
                assert_eq!(generator.output.len(), 40);
                assert_eq!(
                    count, 0,
                    "{mode:?}, {io:?}, {memory} bytes, {n_experts} experts"
                );
            }
        }
    }
    assert!(0 < given && given < asked, "{given} of {asked}");
    assert!(
        ALLOCATIONS.load(Ordering::Relaxed) > 100,
        "the counter counts"
    );
}
