//! Work on several threads, handed out in order.

use std::panic::resume_unwind;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Calls `work(state, index)` for each index below `count` and returns the results in order.
///
/// Each thread has one `state` and takes the smallest index that is left, so that files are read
/// and written nearly front to back and memory is bounded by the threads. (A work-stealing pool
/// would start in the middle.) After an error no new index is begun.
///
/// # Errors
/// Of the errors that occurred, the one of the smallest index.
pub fn in_order<S, T: Send, E: Send>(
    threads: usize,
    count: usize,
    state: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, usize) -> Result<T, E> + Sync,
) -> Result<Vec<T>, E> {
    let next = AtomicUsize::new(0);
    let stop = AtomicBool::new(false);
    let failed: Mutex<Option<(usize, E)>> = Mutex::new(None);
    let run = || {
        let mut state = state();
        let mut results = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                break;
            }
            match work(&mut state, index) {
                Ok(result) => results.push((index, result)),
                Err(error) => {
                    stop.store(true, Ordering::Relaxed);
                    let mut failed = failed.lock().unwrap_or_else(|poison| poison.into_inner());
                    if failed.as_ref().is_none_or(|(first, _)| index < *first) {
                        *failed = Some((index, error));
                    }
                }
            }
        }
        results
    };
    let mut results = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads.min(count)).map(|_| scope.spawn(run)).collect();
        let mut results = run();
        for other in others {
            results.extend(other.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        results
    });
    if let Some((_, error)) = failed
        .into_inner()
        .unwrap_or_else(|poison| poison.into_inner())
    {
        return Err(error);
    }
    results.sort_unstable_by_key(|(index, _)| *index);
    Ok(results.into_iter().map(|(_, result)| result).collect())
}

/// Threads that this machine runs at once.
pub fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, |count| count.get())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_order() {
        for threads in [1, 2, 7] {
            for count in [0, 1, 3, 100] {
                let squares = in_order(threads, count, || (), |(), i| Ok::<_, ()>(i * i));
                assert_eq!(squares, Ok((0..count).map(|i| i * i).collect()));
            }
        }
    }

    #[test]
    fn the_first_error_wins_and_stops_the_others() {
        let fail = |(): &mut (), i: usize| if i % 10 == 7 { Err(i) } else { Ok(i) };
        assert_eq!(in_order(1, 100, || (), fail), Err(7));
        let begun = AtomicUsize::new(0);
        let result = in_order(
            4,
            1_000_000,
            || (),
            |(), i| {
                begun.fetch_add(1, Ordering::Relaxed);
                if i == 5 { Err(i) } else { Ok(()) }
            },
        );
        assert_eq!(result, Err(5));
        assert!(begun.into_inner() < 1_000_000);
    }
}
