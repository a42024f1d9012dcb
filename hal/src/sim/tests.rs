//! Devices in virtual time: exact bytes, the same run for the same seed, and every refusal.

use super::*;
use crate::clock::Clock;
use crate::flash::{Flash, IoError, Read};
use crate::page::{PAGE_BYTES, PageIndex};

const PAGE: usize = PAGE_BYTES as usize;

#[repr(align(4096))]
struct Buffers<const COUNT: usize>([[u8; PAGE]; COUNT]);

impl<const COUNT: usize> Buffers<COUNT> {
    fn boxed() -> Box<Self> {
        Box::new(Buffers([[0; PAGE]; COUNT]))
    }
}

fn image(pages: usize) -> Vec<u8> {
    let mut random = Random::new(1);
    (0..pages * PAGE).map(|_| random.next_u64() as u8).collect()
}

fn read(page: u32, buf: &mut [u8]) -> Read<'_> {
    let bytes = buf.len();
    Read {
        start: PageIndex(page),
        buf,
        bytes,
        tag: page,
    }
}

/// Reads pages 0 to 15 through `flash`, retrying; the tags in the order in which they came.
fn read_all<'m>(flash: &mut impl Flash<'m>, buffers: &'m mut Buffers<16>, want: &[u8]) -> Vec<u32> {
    for (page, buf) in buffers.0.iter_mut().enumerate() {
        flash.submit(read(page as u32, buf)).unwrap();
    }
    let mut order = Vec::new();
    for _tick in 0..10_000 {
        while let Some((read, result)) = flash.reap() {
            let at = read.tag as usize * PAGE;
            let same = read.buf[..] == want[at..at + PAGE];
            order.push(read.tag);
            match result {
                Ok(()) => assert!(same, "page {}", read.tag),
                Err(_) => flash.submit(read).unwrap(),
            }
        }
        if !flash.wait(u64::MAX) {
            return order;
        }
    }
    panic!("not done in 10000 ticks");
}

fn run(seed: u64, latency: Latency) -> (Vec<u32>, u64) {
    let image = image(16);
    let clock = SimClock::new();
    let mut buffers = Buffers::boxed();
    let mut flash = SimFlash::new(&image, &clock, latency, seed);
    (read_all(&mut flash, &mut buffers, &image), clock.now_ns())
}

#[test]
fn one_seed_is_one_run() {
    for seed in 0..50 {
        assert_eq!(
            run(seed, Latency::UFS_4_0),
            run(seed, Latency::UFS_4_0),
            "seed {seed}"
        );
    }
    let orders: std::collections::BTreeSet<_> =
        (0..50).map(|seed| run(seed, Latency::UFS_4_0)).collect();
    assert!(orders.len() > 45, "{} different runs of 50", orders.len());
    let sorted = (0..50)
        .filter(|&seed| run(seed, Latency::UFS_4_0).0.is_sorted())
        .count();
    assert!(sorted < 5, "{sorted} of 50 runs came in order");
}

#[test]
fn without_latency_reads_come_in_order_and_at_once() {
    let (order, now_ns) = run(3, Latency::NONE);
    assert_eq!(order, (0..16).collect::<Vec<_>>());
    assert_eq!(now_ns, 0);
}

#[test]
fn deep_queues_reach_the_bandwidth_and_single_reads_the_latency() {
    let image = image(16);
    let clock = SimClock::new();
    let latency = Latency {
        jitter_pct: 0,
        slow_pml: 0,
        ..Latency::UFS_4_0
    };
    let mut buffers = Buffers::<16>::boxed();
    let mut flash = SimFlash::new(&image, &clock, latency, 1);
    read_all(&mut flash, &mut buffers, &image);
    let occupied_ns = latency.occupied_ns(PAGE);
    let deep_ns = clock.now_ns();
    assert_eq!(
        deep_ns,
        (16 * occupied_ns).max(latency.access_ns + occupied_ns)
    );

    let mut page = Buffers::<1>::boxed();
    let mut flash = SimFlash::new(&image, &clock, latency, 1);
    flash.submit(read(3, &mut page.0[0])).unwrap();
    assert!(flash.wait(u64::MAX));
    assert_eq!(clock.now_ns() - deep_ns, latency.access_ns + occupied_ns);
}

#[test]
fn refusals_hand_the_read_back() {
    let image = image(4);
    let clock = SimClock::new();
    let mut buffers = Buffers::<5>::boxed();
    let [first, second, third, fourth, fifth] = &mut buffers.0;
    let mut flash = SimFlash::new(&image[..3 * PAGE + 100], &clock, Latency::UFS_4_0, 1);
    flash = flash.with_depth(1).with_align_bytes(4096);
    assert_eq!((flash.depth(), flash.align_bytes()), (1, 4096));

    let (error, back) = flash.submit(read(3, first)).unwrap_err();
    assert_eq!((error, back.tag), (IoError::EndOfImage, 3));
    let (error, _) = flash.submit(read(u32::MAX, back.buf)).unwrap_err();
    assert_eq!(error, IoError::EndOfImage);
    let (error, _) = flash.submit(read(0, &mut second[..100])).unwrap_err();
    assert_eq!(error, IoError::Unaligned);
    let (error, _) = flash.submit(read(0, &mut [])).unwrap_err();
    assert_eq!(error, IoError::Unaligned);
    let beyond = Read {
        bytes: 2 * PAGE,
        ..read(0, third)
    };
    let (error, _) = flash.submit(beyond).unwrap_err();
    assert_eq!(error, IoError::Unaligned);

    assert!(!flash.wait(1_000), "nothing is in flight");
    flash.submit(read(2, fourth)).unwrap();
    let (error, back) = flash.submit(read(1, fifth)).unwrap_err();
    assert_eq!((error, back.tag), (IoError::Busy, 1));
}

#[test]
fn a_misaligned_buffer_is_refused() {
    let image = image(2);
    let clock = SimClock::new();
    let mut buffers = Buffers::<2>::boxed();
    let mut flash = SimFlash::new(&image, &clock, Latency::NONE, 1);
    let bytes = buffers.0.as_flattened_mut();
    let (error, _) = flash.submit(read(0, &mut bytes[8..PAGE + 8])).unwrap_err();
    assert_eq!(error, IoError::Unaligned);
}

#[test]
fn a_wait_ends_at_its_deadline() {
    let image = image(1);
    let clock = SimClock::new();
    let mut page = Buffers::<1>::boxed();
    let never = Latency {
        slow_pml: 1000,
        slow_ns: u64::MAX / 2,
        ..Latency::NONE
    };
    let mut flash = SimFlash::new(&image, &clock, never, 1);
    flash.submit(read(0, &mut page.0[0])).unwrap();
    assert!(!flash.wait(5_000));
    assert_eq!(clock.now_ns(), 5_000);
    assert!(flash.reap().is_none());
    assert!(clock.now_ns() > 5_000, "polling takes time too");
}

#[test]
fn the_rest_of_a_buffer_stays_untouched() {
    let image = image(2);
    let clock = SimClock::new();
    let mut pages = Buffers::<2>::boxed();
    let buf = pages.0.as_flattened_mut();
    buf.fill(7);
    let faults = Faults::new(PerFault {
        failed: 1000,
        ..PerFault::default()
    });
    let inner = SimFlash::new(&image, &clock, Latency::NONE, 1);
    let mut flash = Faulty::new(inner, &clock, &faults, 1);
    flash
        .submit(Read {
            start: PageIndex(1),
            buf,
            bytes: PAGE,
            tag: 9,
        })
        .unwrap();
    assert!(flash.wait(0));
    let (read, result) = flash.reap().unwrap();
    assert_eq!(result, Err(IoError::Device { errno: 5 }));
    assert!(read.buf[..PAGE].iter().all(|&byte| byte == POISON));
    assert!(read.buf[PAGE..].iter().all(|&byte| byte == 7));
    assert_eq!((read.tag, read.bytes), (9, PAGE));
}

#[test]
fn faults_change_the_way_but_not_the_answer() {
    let image = image(16);
    for seed in 0..100 {
        let clock = SimClock::new();
        let mut buffers = Buffers::boxed();
        let inner = SimFlash::new(&image, &clock, Latency::UFS_3_1, seed);
        let faults = Faults::new(PerFault {
            failed: 600,
            ..PerFault::default()
        });
        let mut flash = Metered::new(Faulty::new(inner, &clock, &faults, seed));
        let order = read_all(&mut flash, &mut buffers, &image);
        let meter = flash.meter();
        let failed = u64::from(faults.counts().failed);
        assert_eq!(order.len() as u64, 16 + failed, "seed {seed}");
        assert_eq!(
            (meter.reads, meter.failed),
            (16 + failed, failed),
            "seed {seed}"
        );
        assert!(failed > 0, "seed {seed}");
    }
}

#[test]
fn corruption_is_one_bit() {
    let image = image(16);
    let clock = SimClock::new();
    let mut buffers = Buffers::<16>::boxed();
    let inner = SimFlash::new(&image, &clock, Latency::NONE, 1);
    let faults = Faults::new(PerFault {
        altered: 500,
        ..PerFault::default()
    });
    let mut flash = Faulty::new(inner, &clock, &faults, 1);
    let mut flipped = 0;
    for (page, buf) in buffers.0.iter_mut().enumerate() {
        flash.submit(read(page as u32, buf)).unwrap();
    }
    while let Some((read, result)) = flash.reap() {
        assert_eq!(result, Ok(()));
        let at = read.tag as usize * PAGE;
        let bits = read
            .buf
            .iter()
            .zip(&image[at..])
            .map(|(a, b)| (a ^ b).count_ones());
        let bits: u32 = bits.sum();
        assert!(bits <= 1);
        flipped += bits;
    }
    assert_eq!(flipped, faults.counts().altered);
    assert!((1..16).contains(&flipped), "{flipped}");
}

#[test]
fn a_lost_read_never_comes_out_and_is_waited_for() {
    let image = image(16);
    let clock = SimClock::new();
    let mut buffers = Buffers::<16>::boxed();
    let inner = SimFlash::new(&image, &clock, Latency::UFS_4_0, 1);
    let faults = Faults::new(PerFault {
        lost: 1000,
        ..PerFault::default()
    });
    faults.lose_only(3..6);
    let mut flash = Faulty::new(inner, &clock, &faults, 1);
    for (page, buf) in buffers.0.iter_mut().enumerate() {
        flash.submit(read(page as u32, buf)).unwrap();
    }
    let mut came = Vec::new();
    while flash.wait(1_000_000) {
        came.extend(flash.reap().map(|(read, _)| read.tag));
    }
    came.sort_unstable();
    assert!(came.into_iter().eq((0..3).chain(6..16)));
    assert_eq!(faults.counts().lost, 3);
    let before_ns = clock.now_ns();
    assert!(!flash.wait(5_000) && flash.reap().is_none());
    assert!(clock.now_ns() >= before_ns + 5_000);
}

#[test]
fn the_meter_sees_sizes_and_depth() {
    let image = image(8);
    let clock = SimClock::new();
    let mut buffers = Buffers::<8>::boxed();
    let inner = SimFlash::new(&image, &clock, Latency::UFS_4_0, 1).with_depth(2);
    let mut flash = Metered::new(inner);
    let (large, small) = buffers.0.as_flattened_mut().split_at_mut(6 * PAGE);
    flash.submit(read(0, large)).unwrap();
    let (first, second) = small.split_at_mut(PAGE);
    flash.submit(read(7, first)).unwrap();
    let (error, _) = flash.submit(read(6, second)).unwrap_err();
    assert_eq!(error, IoError::Busy);
    let mut done = 0;
    while flash.wait(u64::MAX) {
        done += usize::from(flash.reap().is_some());
    }
    assert_eq!(done, 2);
    let meter = flash.meter();
    assert_eq!(
        (meter.reads, meter.bytes, meter.busy),
        (2, 7 * PAGE_BYTES, 1)
    );
    assert_eq!(
        (meter.in_flight, meter.in_flight_max, meter.waits),
        (0, 2, 3)
    );
    assert!(
        meter
            .sizes_bytes
            .oldest_ordered()
            .eq(&[6 * PAGE as u32, PAGE as u32])
    );
    flash.reset();
    assert_eq!(flash.meter(), &Meter::default());
}
