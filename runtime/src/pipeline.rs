//! The five stages of the cold clusters of one section, as a pure state machine.
//!
//! A cluster goes through Pred, GIO, GC, UDIO, UDC strictly in this order (PowerInfer-2, section
//! 4.3): predict its active neurons; read their gates; gate product; read up and down of those that
//! are alive; up product and down sum. Between clusters there is no order but that of admission to
//! the cache, so a lane takes whatever is ready. The machine knows neither weights nor devices: it
//! is told what happened and says what may be done next.

use crate::limits::JOBS_MAX;

#[cfg(test)]
mod tests;

/// Where a cluster stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Nothing was done yet.
    New,
    /// A lane predicts (Pred).
    Predicting,
    /// Predicted; its neurons have no places in the cache yet.
    Predicted,
    /// Gates are read (GIO): so many reads are awaited, and perhaps not all are known yet.
    Reading { awaited: u32, admitting: bool },
    /// All gates are there.
    GateReady,
    /// A lane computes gates (GC).
    Gating,
    /// It is known who is alive; up and down may have to be read (UDIO).
    Gated,
    /// Up and down are read.
    ReadingRest { awaited: u32, admitting: bool },
    /// Everything is there.
    Ready,
    /// A lane computes up and down (UDC).
    Finishing,
    /// The sum is there; its places in the cache are not given back yet.
    Finished,
    /// Over.
    Released,
}

/// What a lane may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Pred of this cluster.
    Predict(usize),
    /// Pred of this cluster of the next section, to begin reads early.
    Foresee(usize),
    /// GC of this cluster.
    Gate(usize),
    /// UDC of this cluster.
    Finish(usize),
    /// Nothing now, more to come.
    Wait,
    /// Nothing any more.
    Done,
}

/// Stages of up to [`JOBS_MAX`] clusters.
#[derive(Debug, Clone)]
pub struct Pipeline {
    stages: heapless::Vec<Stage, JOBS_MAX>,
    /// Clusters before this one have their places.
    admitted: usize,
    /// Clusters do not wait for each other.
    overlaps: bool,
    /// Clusters of the next section of which it is asked what they are likely to need.
    ahead: core::ops::Range<usize>,
    failed: bool,
}

impl Pipeline {
    /// `clusters` clusters, none begun, and `ahead` ones of the next section, of which lanes shall
    /// find out what they are likely to need. Where they do not overlap, a stage of computation is
    /// begun only when all reads before it are over, for every cluster: a pipeline by matrices, for
    /// comparison.
    ///
    /// # Panics
    /// If they are more than [`JOBS_MAX`].
    pub fn new(clusters: usize, ahead: usize, overlaps: bool) -> Self {
        assert!(clusters <= JOBS_MAX, "{clusters} clusters");
        Pipeline {
            stages: (0..clusters).map(|_| Stage::New).collect(),
            admitted: 0,
            overlaps,
            ahead: 0..ahead,
            failed: false,
        }
    }

    fn step(&mut self, cluster: usize, from: Stage, to: Stage) {
        let stage = &mut self.stages[cluster];
        assert_eq!(*stage, from, "cluster {cluster}");
        *stage = to;
    }

    fn first(&self, stage: Stage) -> Option<usize> {
        self.stages.iter().position(|&other| other == stage)
    }

    /// Takes the next thing to compute: predictions first, since reads wait for them, of this
    /// section and then of the next; then what frees places; then what is ready.
    pub fn take(&mut self) -> Work {
        if self.failed {
            return Work::Done;
        }
        if let Some(cluster) = self.first(Stage::New) {
            self.stages[cluster] = Stage::Predicting;
            return Work::Predict(cluster);
        }
        if let Some(cluster) = self.ahead.next() {
            return Work::Foresee(cluster);
        }
        if let Some(cluster) = self.first(Stage::Ready)
            && (self.overlaps || !self.reads_before(Stage::Ready))
        {
            self.stages[cluster] = Stage::Finishing;
            return Work::Finish(cluster);
        }
        if let Some(cluster) = self.first(Stage::GateReady)
            && (self.overlaps || !self.reads_before(Stage::GateReady))
        {
            self.stages[cluster] = Stage::Gating;
            return Work::Gate(cluster);
        }
        let over = |stage: &Stage| matches!(stage, Stage::Finished | Stage::Released);
        match self.stages.iter().all(over) {
            true => Work::Done,
            false => Work::Wait,
        }
    }

    /// From now on clusters do not wait for each other.
    pub fn overlap(&mut self) {
        self.overlaps = true;
    }

    /// True if a cluster may still have to read before it gets to `stage`.
    fn reads_before(&self, stage: Stage) -> bool {
        let before = |other: &Stage| match other {
            Stage::New | Stage::Predicting | Stage::Predicted | Stage::Reading { .. } => true,
            Stage::GateReady | Stage::Gating | Stage::Gated | Stage::ReadingRest { .. } => {
                stage == Stage::Ready
            }
            Stage::Ready | Stage::Finishing | Stage::Finished | Stage::Released => false,
        };
        self.stages.iter().any(before)
    }

    /// Pred is done.
    pub fn predicted(&mut self, cluster: usize) {
        self.step(cluster, Stage::Predicting, Stage::Predicted);
    }

    /// The next cluster to be given places, in order: a cluster never waits for places that a later
    /// one holds. It stays the next until [`Pipeline::all_admitted`].
    pub fn take_predicted(&mut self) -> Option<usize> {
        let cluster = self.admitted;
        match *self.stages.get(cluster)? {
            Stage::Predicted => {
                self.stages[cluster] = Stage::Reading {
                    awaited: 0,
                    admitting: true,
                };
                Some(cluster)
            }
            Stage::Reading {
                admitting: true, ..
            } => Some(cluster),
            _ => None,
        }
    }

    /// The next cluster whose up and down parts are to be asked for.
    pub fn take_gated(&mut self) -> Option<usize> {
        let admitting = |stage: &Stage| {
            matches!(
                stage,
                Stage::Gated
                    | Stage::ReadingRest {
                        admitting: true,
                        ..
                    }
            )
        };
        let cluster = self.stages.iter().position(admitting)?;
        if self.stages[cluster] == Stage::Gated {
            self.stages[cluster] = Stage::ReadingRest {
                awaited: 0,
                admitting: true,
            };
        }
        Some(cluster)
    }

    /// One more read is awaited by a cluster that is being admitted.
    pub fn expect(&mut self, cluster: usize) {
        match &mut self.stages[cluster] {
            Stage::Reading {
                awaited,
                admitting: true,
            }
            | Stage::ReadingRest {
                awaited,
                admitting: true,
            } => *awaited += 1,
            stage => panic!("cluster {cluster} awaits a read in {stage:?}"),
        }
    }

    /// Something that a cluster awaited has arrived.
    pub fn arrived(&mut self, cluster: usize) {
        match &mut self.stages[cluster] {
            Stage::Reading { awaited, .. } | Stage::ReadingRest { awaited, .. } if *awaited > 0 => {
                *awaited -= 1;
            }
            stage => panic!("a read of cluster {cluster} arrived in {stage:?}"),
        }
        self.settle(cluster);
    }

    /// All that the cluster awaits is known.
    pub fn all_admitted(&mut self, cluster: usize) {
        match &mut self.stages[cluster] {
            Stage::Reading { admitting, .. } if *admitting => {
                *admitting = false;
                self.admitted = cluster + 1;
            }
            Stage::ReadingRest { admitting, .. } if *admitting => *admitting = false,
            stage => panic!("cluster {cluster} was admitted in {stage:?}"),
        }
        self.settle(cluster);
    }

    fn settle(&mut self, cluster: usize) {
        let stage = &mut self.stages[cluster];
        match *stage {
            Stage::Reading {
                awaited: 0,
                admitting: false,
            } => *stage = Stage::GateReady,
            Stage::ReadingRest {
                awaited: 0,
                admitting: false,
            } => *stage = Stage::Ready,
            _ => {}
        }
    }

    /// GC is done.
    pub fn gated(&mut self, cluster: usize) {
        self.step(cluster, Stage::Gating, Stage::Gated);
    }

    /// UDC is done.
    pub fn finished(&mut self, cluster: usize) {
        self.step(cluster, Stage::Finishing, Stage::Finished);
    }

    /// A cluster whose places may be given back; it counts as released from now on.
    pub fn take_finished(&mut self) -> Option<usize> {
        let cluster = self.first(Stage::Finished)?;
        self.stages[cluster] = Stage::Released;
        Some(cluster)
    }

    /// True once every cluster has its places.
    pub fn has_admitted_all(&self) -> bool {
        self.admitted == self.stages.len()
    }

    /// True while clusters are predicted, of this section or of the next.
    pub fn is_predicting(&self) -> bool {
        let predicts = |stage: &Stage| matches!(stage, Stage::New | Stage::Predicting);
        !self.ahead.is_empty() || self.stages.iter().any(predicts)
    }

    /// True if some cluster waits for the flash, and no lane computes what more reads may follow
    /// from.
    pub fn waits_for_reads(&self) -> bool {
        let waits =
            |stage: &Stage| matches!(stage, Stage::Reading { .. } | Stage::ReadingRest { .. });
        let busy = |stage: &Stage| matches!(stage, Stage::New | Stage::Predicting | Stage::Gating);
        self.stages.iter().any(waits) && !self.stages.iter().any(busy)
    }

    /// No more work is given out.
    pub fn fail(&mut self) {
        self.failed = true;
    }

    /// True after [`Pipeline::fail`].
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// True once every cluster is released.
    #[cfg(test)]
    fn is_over(&self) -> bool {
        self.stages.iter().all(|&stage| stage == Stage::Released)
    }
}
