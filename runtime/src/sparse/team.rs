//! The lanes that work on one window of clusters, and which of them owns the flash queue.

use core::sync::atomic::{AtomicBool, Ordering};

use spin::mutex::SpinMutex;
use tessera_hal::{Clock, Cores, Flash};

use super::cluster::{Cluster, Stages};
use super::foresight::Ahead;
use super::owner::Owner;
use crate::limits::LANES_MAX;
use crate::pipeline::{Pipeline, Work};
use crate::work::Lanes;

/// The lanes that work on one window of clusters.
pub struct Team<'t, 'a, 'b, 'c, 'n, 'm, F, K> {
    /// What may be done.
    pub pipeline: &'t SpinMutex<Pipeline>,
    /// The clusters.
    pub clusters: &'t [SpinMutex<Cluster<'c>>],
    /// Clusters of the next section.
    pub ahead: &'t [SpinMutex<Ahead<'n>>],
    /// What is computed of them.
    pub stages: &'t Stages<'t>,
    /// Who reads.
    pub owner: &'t SpinMutex<Owner<'a, 'b, 'c, 'n, 'm, F>>,
    /// The lane that owns the flash queue once it is here; before, any lane does.
    pub owner_lane: usize,
    /// That lane is at work.
    pub owner_is_here: AtomicBool,
    /// Time.
    pub clock: &'t K,
}

/// Ends the work of all lanes if one panics, so that none waits for it.
struct EndOnPanic<'a>(&'a SpinMutex<Pipeline>);

impl Drop for EndOnPanic<'_> {
    fn drop(&mut self) {
        self.0.lock().fail();
    }
}

impl<'m, F: Flash<'m>, K: Clock> Team<'_, '_, '_, '_, '_, 'm, F, K> {
    /// All stages of all clusters, unless reads fail.
    pub fn run<C: Cores>(&self, cores: &C, lanes: &Lanes<'_>) {
        let mut members: heapless::Vec<(), LANES_MAX> = (0..cores.lanes()).map(|_| ()).collect();
        cores.for_each(&mut members, &|lane, ()| self.work(lane, lanes));
    }

    /// One lane's work, until nothing is left.
    fn work(&self, lane: usize, lanes: &Lanes<'_>) {
        let guard = EndOnPanic(self.pipeline);
        let owns = lane == self.owner_lane;
        if owns {
            self.owner_is_here.store(true, Ordering::Relaxed);
        }
        loop {
            if owns && let Some(mut owner) = self.owner.try_lock() {
                owner.step();
            }
            let work = self.pipeline.lock().take();
            match work {
                Work::Predict(cluster) => {
                    let mut state = self.clusters[cluster].lock();
                    self.stages.predict(&mut state, &mut lanes[lane].lock());
                    drop(state);
                    self.pipeline.lock().predicted(cluster);
                }
                Work::Foresee(cluster) => {
                    let mut ahead = self.ahead[cluster].lock();
                    self.stages.foresee(&mut ahead, &mut lanes[lane].lock());
                }
                Work::Gate(cluster) => {
                    let mut state = self.clusters[cluster].lock();
                    self.stages.gate(&mut state, &mut lanes[lane].lock());
                    drop(state);
                    self.pipeline.lock().gated(cluster);
                }
                Work::Finish(cluster) => {
                    let mut state = self.clusters[cluster].lock();
                    self.stages.finish(&mut state, &mut lanes[lane].lock());
                    drop(state);
                    self.pipeline.lock().finished(cluster);
                }
                Work::Wait => self.wait(owns),
                Work::Done => break,
            }
        }
        if owns {
            self.owner_is_here.store(false, Ordering::Relaxed);
        }
        core::mem::forget(guard);
    }

    /// Nothing can be computed: looks after the flash, or lets others.
    fn wait(&self, owns: bool) {
        if !owns && self.owner_is_here.load(Ordering::Relaxed) {
            return core::hint::spin_loop();
        }
        let Some(mut owner) = self.owner.try_lock() else {
            return core::hint::spin_loop();
        };
        if !owner.step() && owner.is_reading() && self.pipeline.lock().waits_for_reads() {
            owner.wait(self.clock);
        }
    }
}
