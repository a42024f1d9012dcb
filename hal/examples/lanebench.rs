//! What a fork-join costs: nanoseconds for each, by number of items and gap between two of them.
//!
//! `lanebench [LANES]`

use std::hint;
use std::time::{Duration, Instant};

use tessera_hal::Cores;
use tessera_hal::linux::{LaneOptions, Lanes};

fn spin(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        hint::spin_loop();
    }
}

/// What a join adds to its work: one item of 20 us for each lane, back to back.
fn handover(lanes: &Lanes) {
    let work = Duration::from_micros(20);
    let mut data = vec![(); lanes.lanes()];
    let mut times: Vec<u64> = Vec::with_capacity(5_000);
    for _join in 0..times.capacity() {
        let start = Instant::now();
        lanes.for_each(&mut data, &|_, ()| spin(work));
        times.push(start.elapsed().saturating_sub(work).as_nanos() as u64);
    }
    times.sort_unstable();
    let [p50, p90, p99] = [50, 90, 99].map(|percent| times[times.len() * percent / 100]);
    println!("an item of 20 us for each lane takes longer by (ns): {p50} {p90} {p99}");
}

fn main() {
    let asked = std::env::args()
        .nth(1)
        .and_then(|lanes| lanes.parse().ok())
        .unwrap_or(0);
    let options = LaneOptions {
        lanes: asked,
        pin: true,
        ..Default::default()
    };
    let (lanes, report) = Lanes::new(&options);
    println!("{report}");
    println!(
        "{:>8}{:>8}{:>10}{:>10}{:>10}{:>12}",
        "items", "gap us", "p50", "p90", "p99", "mean"
    );
    for gap_us in [0, 5, 20, 100, 1000] {
        for items in [lanes.lanes(), 64, 1024] {
            let mut data = vec![0u64; items];
            let count = if gap_us < 100 { 20_000 } else { 2_000 };
            let mut times: Vec<u64> = Vec::with_capacity(count);
            for _join in 0..count {
                spin(Duration::from_micros(gap_us));
                let start = Instant::now();
                lanes.for_each(&mut data, &|_, item| *item += 1);
                times.push(start.elapsed().as_nanos() as u64);
            }
            assert!(data.iter().all(|&item| item == count as u64));
            let mean = times.iter().sum::<u64>() / count as u64;
            times.sort_unstable();
            let [p50, p90, p99] = [50, 90, 99].map(|percent| times[count * percent / 100]);
            println!("{items:>8}{gap_us:>8}{p50:>10}{p90:>10}{p99:>10}{mean:>12}");
        }
    }
    handover(&lanes);
}
