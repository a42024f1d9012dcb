//! Lanes as persistent threads, joined by spinning for a moment and sleeping after.
//!
//! One job at a time. Items are claimed from a shared counter, so that a slow core, or one that
//! another process is busy on, takes fewer of them. A thread that wakes too late finds the gate
//! closed and stays out: the caller never waits for a lane that has not begun.

#![allow(unsafe_code)]

use core::any::Any;
use core::cell::{Cell, UnsafeCell};
use core::hint;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};

use super::affinity::Pin;
use super::lane_report::{LaneOptions, LaneReport, Placement};
use super::sys;
use crate::cores::Cores;

/// Gate: set while threads may enter the job.
const OPEN: u32 = 1 << 31;
/// Gate: set while the caller sleeps until the last thread has left.
const AWAITED: u32 = 1 << 30;
/// Gate: the number of threads inside.
const INSIDE: u32 = AWAITED - 1;

/// Items are claimed in runs such that each lane has about this many runs.
const RUNS_PER_LANE: usize = 16;

/// Looks at the word between two looks at the clock.
const SPINS_PER_CLOCK: u32 = 16;

/// A thread whose waits are always long spins no longer than this before it sleeps.
const SPIN_MIN_NS: u64 = 1_000;

const LANE_STACK_BYTES: usize = 1 << 20;

/// Alone on its cache lines, so that spinning on one word does not slow down another.
#[repr(align(128))]
struct Line<T>(T);

/// A call of `for_each`, with its types forgotten.
#[derive(Clone, Copy)]
struct Job {
    /// A `Call<T>` on the caller's stack.
    call: *const (),
    /// Visits a range of its items; the `run_range` of the same `T`.
    run: unsafe fn(*const (), usize, usize, usize),
    items: usize,
    items_per_claim: usize,
}

struct Call<'a, T> {
    items: *mut T,
    visit: &'a (dyn Fn(usize, &mut T) + Sync),
}

/// Visits items `first..end` of the call on `lane`.
///
/// # Safety
/// `call` points to a live `Call<T>` whose `items` has at least `end` elements, and no one else
/// refers to the elements of this range.
unsafe fn run_range<T>(call: *const (), lane: usize, first: usize, end: usize) {
    // SAFETY: promised by the caller.
    let call = unsafe { &*call.cast::<Call<'_, T>>() };
    for index in first..end {
        // SAFETY: `index` is in bounds and in a range that is this lane's alone.
        let item = unsafe { &mut *call.items.add(index) };
        (call.visit)(lane, item);
    }
}

/// What the caller and the threads share.
struct Shared {
    /// Counts jobs; threads wait for it to change.
    epoch: Line<AtomicU32>,
    /// Threads that sleep on `epoch`.
    sleepers: Line<AtomicU32>,
    gate: Line<AtomicU32>,
    /// First item that no one has claimed.
    next: Line<AtomicUsize>,
    /// Written by the caller while the gate is closed and no thread is inside; read by threads
    /// inside.
    job: UnsafeCell<Job>,
    stop: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `job` is guarded by the gate as its comment says; the items behind it are `Send`, and
// the visitor is `Sync`, by the bounds of `for_each`.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    fn new() -> Self {
        let job = Job {
            call: core::ptr::null(),
            run: run_range::<()>,
            items: 0,
            items_per_claim: 1,
        };
        Shared {
            epoch: Line(AtomicU32::new(0)),
            sleepers: Line(AtomicU32::new(0)),
            gate: Line(AtomicU32::new(0)),
            next: Line(AtomicUsize::new(0)),
            job: UnsafeCell::new(job),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
        }
    }

    /// Publishes a new epoch and wakes up to `wake` sleepers.
    fn announce(&self, wake: u32) {
        // The order epoch, then sleepers, against a thread's sleepers, then epoch: either we see
        // the sleeper or it sees the epoch.
        self.epoch.0.fetch_add(1, Ordering::SeqCst);
        if self.sleepers.0.load(Ordering::SeqCst) > 0 {
            sys::futex_wake(&self.epoch.0, wake);
        }
    }

    /// Claims and visits items until none is left.
    ///
    /// # Safety
    /// `job` is the open job, and its gate stays open or this thread stays inside until the
    /// return.
    unsafe fn work(&self, job: &Job, lane: usize) {
        loop {
            let first = self
                .next
                .0
                .fetch_add(job.items_per_claim, Ordering::Relaxed);
            if first >= job.items {
                return;
            }
            let end = (first + job.items_per_claim).min(job.items);
            // SAFETY: the call lives until the caller has seen everyone leave, and the counter
            // gives out each range once.
            unsafe { (job.run)(job.call, lane, first, end) };
        }
    }

    /// Enters the open job; false if there is none.
    fn enter(&self) -> bool {
        let mut gate = self.gate.0.load(Ordering::Relaxed);
        while gate & OPEN != 0 {
            // Acquire: what the caller wrote before it opened the gate is visible inside.
            match self.gate.0.compare_exchange_weak(
                gate,
                gate + 1,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return true,
                Err(now) => gate = now,
            }
        }
        false
    }

    fn leave(&self) {
        // Release: what this lane wrote is visible to the caller that sees it gone.
        let before = self.gate.0.fetch_sub(1, Ordering::Release);
        if before == AWAITED | 1 {
            sys::futex_wake(&self.gate.0, 1);
        }
    }

    /// Closes the gate and waits until no thread is inside.
    fn close(&self, spin_ns: u64) {
        self.gate.0.fetch_and(!OPEN, Ordering::Relaxed);
        let empty = || self.gate.0.load(Ordering::Acquire) & INSIDE == 0;
        if !spin_until(spin_ns, empty) {
            self.gate.0.fetch_or(AWAITED, Ordering::Relaxed);
            loop {
                let gate = self.gate.0.load(Ordering::Acquire);
                if gate & INSIDE == 0 {
                    break;
                }
                sys::futex_wait(&self.gate.0, gate);
            }
            self.gate.0.store(0, Ordering::Relaxed);
        }
    }

    /// Waits for an epoch other than `seen`.
    fn await_epoch(&self, seen: u32, spin_ns: &mut u64, spin_max_ns: u64) -> u32 {
        let start_ns = sys::monotonic_ns();
        let changed = || self.epoch.0.load(Ordering::Acquire) != seen;
        if !spin_until(*spin_ns, changed) {
            self.sleepers.0.fetch_add(1, Ordering::SeqCst);
            while self.epoch.0.load(Ordering::SeqCst) == seen {
                sys::futex_wait(&self.epoch.0, seen);
            }
            self.sleepers.0.fetch_sub(1, Ordering::Relaxed);
            let gap_ns = sys::monotonic_ns() - start_ns;
            *spin_ns = next_spin_ns(*spin_ns, spin_max_ns, gap_ns);
        }
        self.epoch.0.load(Ordering::Acquire)
    }

    /// A thread's life.
    fn serve(&self, lane: usize, spin_max_ns: u64) {
        let mut seen = 0;
        let mut spin_ns = spin_max_ns;
        loop {
            seen = self.await_epoch(seen, &mut spin_ns, spin_max_ns);
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            if !self.enter() {
                continue;
            }
            // SAFETY: inside, so the caller does not write.
            let job = unsafe { *self.job.get() };
            // SAFETY: this thread is inside until `leave`.
            let outcome = catch_unwind(AssertUnwindSafe(|| unsafe { self.work(&job, lane) }));
            if let Err(panic) = outcome {
                self.next.0.store(job.items, Ordering::Relaxed);
                *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic);
            }
            self.leave();
        }
    }
}

/// Looks at `condition` again and again, for about `spin_ns`; true once it holds.
fn spin_until(spin_ns: u64, condition: impl Fn() -> bool) -> bool {
    let mut deadline_ns = 0;
    loop {
        for _look in 0..SPINS_PER_CLOCK {
            if condition() {
                return true;
            }
            hint::spin_loop();
        }
        let now_ns = sys::monotonic_ns();
        if deadline_ns == 0 {
            deadline_ns = now_ns + spin_ns;
        }
        if now_ns >= deadline_ns {
            return false;
        }
    }
}

/// How long to spin next time, after a wait of `gap_ns` that spinning did not cover: less where
/// waits are long anyway, the full time once they are short again.
fn next_spin_ns(spin_ns: u64, spin_max_ns: u64, gap_ns: u64) -> u64 {
    if gap_ns <= spin_max_ns {
        spin_max_ns
    } else {
        (spin_ns / 2).max(SPIN_MIN_NS)
    }
}

/// Threads that share the work of their caller, who is lane 0.
///
/// A visit that panics ends the call of `for_each`: the other visits that have begun are finished,
/// then the panic goes on in the caller.
pub struct Lanes {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Where each lane was put, and its thread's number.
    placements: Vec<Placement>,
    spin_ns: u64,
    /// Inside a `for_each`. Also keeps `Lanes` from being shared, and so from visits.
    busy: Cell<bool>,
}

impl Lanes {
    /// Starts the lanes that `options` ask for, and says what became of them.
    pub fn new(options: &LaneOptions) -> (Lanes, LaneReport) {
        let plan = options.plan();
        let shared = Arc::new(Shared::new());
        let mut threads = Vec::with_capacity(plan.lanes - 1);
        let mut placements = vec![Placement::here(plan.core(0).filter(|_| options.pin_caller))];
        let (sender, receiver) = mpsc::channel();
        for lane in 1..plan.lanes {
            let (shared, sender) = (Arc::clone(&shared), sender.clone());
            let (core, spin_ns) = (plan.core(lane), plan.spin_ns);
            let builder = thread::Builder::new()
                .name(format!("tessera-lane{lane}"))
                .stack_size(LANE_STACK_BYTES);
            let spawned = builder.spawn(move || {
                // The receiver waits for every lane, so it is there.
                let _ = sender.send((lane, Placement::here(core)));
                drop(sender);
                shared.serve(lane, spin_ns);
            });
            match spawned {
                Ok(thread) => threads.push(thread),
                Err(_) => break, // Fewer lanes than asked for; the report says so.
            }
        }
        drop(sender);
        let mut started: Vec<(usize, Placement)> = receiver.into_iter().collect();
        started.sort_by_key(|&(lane, _)| lane);
        placements.extend(started.into_iter().map(|(_, placement)| placement));
        let busy = Cell::new(false);
        let lanes = Lanes {
            shared,
            threads,
            placements,
            spin_ns: plan.spin_ns,
            busy,
        };
        let report = LaneReport::new(&plan, options, &lanes.placements);
        (lanes, report)
    }

    /// Where the lanes are now: a system may move them later. To be called by lane 0.
    pub fn pins(&self) -> Vec<Pin> {
        self.placements.iter().map(Placement::check).collect()
    }
}

/// Ends a `for_each`, also when a visit of the caller's panics.
struct Join<'a>(&'a Lanes);

impl Drop for Join<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0
                .shared
                .next
                .0
                .store(usize::MAX / 2, Ordering::Relaxed);
        }
        self.0.shared.close(self.0.spin_ns);
        self.0.busy.set(false);
    }
}

impl Cores for Lanes {
    fn lanes(&self) -> usize {
        self.threads.len() + 1
    }

    fn for_each<T: Send>(&self, items: &mut [T], visit: &(dyn Fn(usize, &mut T) + Sync)) {
        assert!(
            !self.busy.replace(true),
            "for_each inside a visit of the same lanes"
        );
        let join = Join(self);
        let others = self.threads.len();
        if others == 0 || items.len() < 2 {
            for item in items {
                visit(0, item);
            }
            return;
        }
        let call = Call {
            items: items.as_mut_ptr(),
            visit,
        };
        let items_per_claim = (items.len() / (self.lanes() * RUNS_PER_LANE)).max(1);
        let job = Job {
            call: (&raw const call).cast(),
            run: run_range::<T>,
            items: items.len(),
            items_per_claim,
        };
        let shared = &*self.shared;
        // SAFETY: the gate is closed and no thread is inside: `join` of the job before saw to it.
        unsafe { *shared.job.get() = job };
        shared.next.0.store(0, Ordering::Relaxed);
        shared.gate.0.store(OPEN, Ordering::Release);
        let claims = items.len().div_ceil(items_per_claim);
        shared.announce(others.min(claims - 1) as u32);
        // SAFETY: the gate is open until `join` closes it.
        unsafe { shared.work(&job, 0) };
        drop(join);
        let panic = shared
            .panic
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.announce(u32::MAX);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl core::fmt::Debug for Lanes {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Lanes")
            .field("lanes", &self.lanes())
            .finish_non_exhaustive()
    }
}
