//! Interrupted runs, and what results may not depend on.

use std::sync::atomic::{AtomicUsize, Ordering};

use layout_tool::pack::Weights;
use layout_tool::profile::{ProfileError, Stage, journal_path, profile};

use crate::run::{Bench, profiled, specs};

#[test]
fn interruptions_threads_and_memory_change_no_byte() {
    for spec in specs() {
        let bench = Bench::new(&spec, Weights::Auto, 4, 900);
        let mut options = bench.options("p.image");
        (options.trace, options.predictors) = (Some(bench.path("trace")), true);
        options.threads = Some(1);
        profiled(&options).unwrap();
        let read = |name: &str| std::fs::read(bench.path(name)).unwrap();
        let want = (read("p.image"), read("trace"));
        options.force = true;
        for (threads, memory_bytes) in [(3, 64 << 20), (2, 3 << 20)] {
            options.threads = Some(threads);
            options.memory_bytes = Some(memory_bytes);
            profiled(&options).unwrap();
            assert!((read("p.image"), read("trace")) == want);
        }
        std::fs::remove_file(&options.target).unwrap();
        let mut stops = 0;
        loop {
            // Longer each time, so that there is an end.
            let calls = AtomicUsize::new(4 + stops);
            let go_on = |_: Stage, _, _| calls.fetch_sub(1, Ordering::Relaxed) > 1;
            match profile(&options, &go_on) {
                Ok(_) => break,
                Err(error) => assert_eq!(error, ProfileError::Stopped),
            }
            assert!(journal_path(&options.target).exists());
            assert!(!options.target.exists());
            stops += 1;
        }
        assert!(stops > 3, "{stops}");
        assert!((read("p.image"), read("trace")) == want);
        assert!(!journal_path(&options.target).exists());
    }
}

#[test]
fn a_run_with_other_arguments_is_not_continued() {
    let bench = Bench::new(&specs()[0], Weights::Auto, 1, 400);
    let options = bench.options("p.image");
    let stop = |stage: Stage, done: u64, _: u64| stage != Stage::Observing || done < 300;
    assert_eq!(profile(&options, &stop).unwrap_err(), ProfileError::Stopped);
    let mut others = [(); 4].map(|()| options.clone());
    others[0].tokens = 399;
    others[1].recall = 0.5;
    others[2].loss = 0.5;
    others[3].predictors = true;
    let names = ["number of tokens", "recall", "loss", "choice of predictors"];
    for (other, name) in others.iter().zip(names) {
        let error = profiled(other).unwrap_err().to_string();
        assert!(error.contains(&format!("another {name} (")), "{error}");
        assert!(error.ends_with("or remove it"), "{error}");
    }
    profiled(&options).unwrap();
}

#[test]
fn damage_and_bad_numbers_are_refused_in_a_sentence() {
    let bench = Bench::new(&specs()[0], Weights::Auto, 1, 300);
    let options = bench.options("p.image");
    let mut wrong = options.clone();
    wrong.recall = f32::NAN;
    let error = profiled(&wrong).unwrap_err().to_string();
    assert_eq!(error, "--recall is NaN, it must be above 0 and at most 1");
    std::fs::write(bench.path("ids"), "1 2 100").unwrap();
    let error = profiled(&options).unwrap_err().to_string();
    assert!(
        error.ends_with("ids: token 100, but the vocabulary has 100"),
        "{error}"
    );
    std::fs::write(bench.path("ids"), "1 99999999999").unwrap();
    let error = profiled(&options).unwrap_err().to_string();
    assert!(
        error.ends_with("99999999999 is too large for a token id"),
        "{error}"
    );
    std::fs::write(bench.path("ids"), "none").unwrap();
    let error = profiled(&options).unwrap_err().to_string();
    assert!(error.ends_with("ids: it holds no token"), "{error}");
    // A text of one token is a text.
    std::fs::write(bench.path("ids"), "7").unwrap();
    let report = profiled(&options).unwrap();
    assert_eq!(report.notes.len(), 1, "{:?}", report.notes);
    let mut bytes = std::fs::read(&bench.image).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&bench.image, bytes).unwrap();
    let mut again = options.clone();
    again.force = true;
    let error = profiled(&again).unwrap_err().to_string();
    assert!(error.contains("m.image: "), "{error}");
}
