//! Lanes under stress: every item once, whatever the lanes are doing.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::cores::Cores;
use crate::linux::{LaneOptions, Lanes, Pin, affinity, allowed_cores};

fn start(lanes: usize) -> Lanes {
    Lanes::new(&LaneOptions {
        lanes,
        ..Default::default()
    })
    .0
}

#[test]
fn a_hundred_thousand_joins_visit_every_item_once() {
    let lanes = start(2);
    let mut items = vec![0u64; 13];
    let rounds = 100_000;
    for round in 0..rounds {
        lanes.for_each(&mut items, &|_, item| *item += 1);
        if round % 1000 == 0 {
            assert!(
                items.iter().all(|&item| item == round + 1),
                "round {round}: {items:?}"
            );
        }
    }
    assert!(items.iter().all(|&item| item == rounds), "{items:?}");
}

#[test]
fn every_number_of_lanes_and_items_works() {
    for count in [1, 2, 3, 5, 9] {
        let lanes = start(count);
        assert_eq!(lanes.lanes(), count);
        for items in (0..40).chain([255, 1000, 12_345]) {
            let mut data: Vec<(usize, usize)> = (0..items).map(|index| (index, 0)).collect();
            for _round in 0..5 {
                lanes.for_each(&mut data, &|lane, item| {
                    assert!(lane < count);
                    item.1 += item.0;
                });
            }
            assert!(
                data.iter().all(|&(index, sum)| sum == 5 * index),
                "{count} {items}"
            );
        }
    }
}

#[test]
fn no_two_visits_share_a_lane_and_writes_are_seen() {
    let lanes = start(4);
    let busy: Vec<AtomicUsize> = (0..4).map(|_| AtomicUsize::new(0)).collect();
    let mut rows: Vec<Vec<u64>> = (0..64).map(|row| vec![row; 50]).collect();
    for _round in 0..500 {
        lanes.for_each(&mut rows, &|lane, row| {
            assert_eq!(busy[lane].fetch_add(1, Ordering::Relaxed), 0);
            for value in row.iter_mut() {
                *value += 1;
            }
            busy[lane].fetch_sub(1, Ordering::Relaxed);
        });
    }
    for (index, row) in rows.iter().enumerate() {
        assert_eq!(row, &vec![index as u64 + 500; 50]);
    }
}

#[test]
fn sleeping_lanes_wake() {
    let lanes = start(3);
    let used: Vec<AtomicUsize> = (0..3).map(|_| AtomicUsize::new(0)).collect();
    let mut items = [0u32; 3];
    for round in 1..=100 {
        thread::sleep(Duration::from_millis(1));
        lanes.for_each(&mut items, &|lane, item| {
            // Long enough for the others to come and for the caller to sleep.
            thread::sleep(Duration::from_micros(300));
            used[lane].fetch_add(1, Ordering::Relaxed);
            *item += 1;
        });
        assert_eq!(items, [round; 3]);
    }
    let others = used[1].load(Ordering::Relaxed) + used[2].load(Ordering::Relaxed);
    assert!(
        others > 50,
        "the caller did {} of 300 items alone",
        300 - others
    );
}

#[test]
fn a_slow_lane_takes_fewer_items() {
    let lanes = start(2);
    let counts = [AtomicUsize::new(0), AtomicUsize::new(0)];
    let mut items = [(); 200];
    lanes.for_each(&mut items, &|lane, ()| {
        thread::sleep(Duration::from_micros(if lane == 1 { 4000 } else { 200 }));
        counts[lane].fetch_add(1, Ordering::Relaxed);
    });
    let counts = counts.map(|count| count.load(Ordering::Relaxed));
    assert_eq!(counts[0] + counts[1], 200);
    assert!(counts[1] < counts[0] / 2, "{counts:?}");
}

#[test]
fn a_panic_reaches_the_caller_and_the_lanes_live_on() {
    let lanes = start(3);
    let mut items: Vec<u32> = (0..100).collect();
    for bad in [0, 50, 99] {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            lanes.for_each(&mut items, &|_, item| {
                thread::sleep(Duration::from_micros(20));
                assert!(*item != bad, "item {bad}");
            });
        }));
        let panic = outcome.unwrap_err();
        assert_eq!(
            panic.downcast_ref::<String>().unwrap(),
            &format!("item {bad}")
        );
        let mut sum = [1u64; 50];
        lanes.for_each(&mut sum, &|_, item| *item += 1);
        assert_eq!(sum, [2; 50]);
    }
}

thread_local! {
    static LANES: Lanes = start(1);
}

#[test]
#[should_panic(expected = "for_each inside a visit")]
fn a_join_inside_a_visit_is_a_mistake() {
    LANES.with(|lanes| {
        lanes.for_each(&mut [(); 3], &|_, ()| {
            LANES.with(|lanes| lanes.for_each(&mut [(); 3], &|_, ()| {}));
        });
    });
}

#[test]
fn lanes_may_move_to_another_thread() {
    let lanes = start(2);
    let worker = thread::spawn(move || {
        let mut items = [1; 10];
        lanes.for_each(&mut items, &|_, item| *item += 1);
        items
    });
    assert_eq!(worker.join().unwrap(), [2; 10]);
}

#[test]
fn pins_are_read_back_and_a_change_is_noticed() {
    // Own thread: pinning the caller would outlive the test.
    thread::spawn(|| {
        let allowed = allowed_cores();
        let options = LaneOptions {
            pin: true,
            pin_caller: true,
            ..Default::default()
        };
        let (lanes, report) = Lanes::new(&options);
        assert_eq!((report.lanes, report.asked), (lanes.lanes(), lanes.lanes()));
        assert_eq!(report.pins, lanes.pins());
        let mut cores: Vec<u16> = report
            .pins
            .iter()
            .map(|pin| match pin {
                Pin::Core(core) => *core,
                other => panic!("{other:?} in {report}"),
            })
            .collect();
        cores.sort_unstable();
        cores.dedup();
        assert_eq!(cores.len(), report.lanes, "two lanes on one core: {report}");
        assert!(cores.iter().all(|core| allowed.contains(core)), "{report}");
        if let (Pin::Core(core), Some(&other)) = (
            report.pins[0],
            allowed
                .iter()
                .find(|&&other| report.pins[0] != Pin::Core(other)),
        ) {
            assert_eq!(affinity::pin_here(other), Pin::Core(other));
            assert_eq!(lanes.pins()[0], Pin::Ignored { core });
        }
    })
    .join()
    .unwrap();
}

#[test]
fn lanes_without_pins_are_free() {
    let (lanes, report) = Lanes::new(&LaneOptions {
        lanes: 3,
        ..Default::default()
    });
    assert_eq!(lanes.pins(), [Pin::Free; 3]);
    assert!(!report.to_string().contains("pinned"), "{report}");
}
