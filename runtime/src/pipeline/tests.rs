//! Every order of events at small sizes.

use super::*;
use std::vec::Vec;

/// One path through a tree of choices; `next` moves on to the path after it.
#[derive(Default)]
struct Exhaust {
    path: Vec<(usize, usize)>,
    depth: usize,
}

impl Exhaust {
    fn choose(&mut self, choices: usize) -> usize {
        if self.depth == self.path.len() {
            self.path.push((0, choices));
        }
        let (choice, expected) = self.path[self.depth];
        assert_eq!(expected, choices, "a path must be repeatable");
        self.depth += 1;
        choice
    }

    fn next(&mut self) -> bool {
        self.depth = 0;
        while let Some((choice, choices)) = self.path.pop() {
            if choice + 1 < choices {
                self.path.push((choice + 1, choices));
                return true;
            }
        }
        false
    }
}

/// What may happen next in a world of lanes and a flash queue.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Event {
    Take,
    Complete(Work),
    Admit,
    AdmitRest,
    Arrive(usize),
    Release,
}

/// `reads` of each stage of each cluster are known in advance; everything else is every
/// possible order.
fn run(
    exhaust: &mut Exhaust,
    (clusters, overlaps): (usize, bool),
    lanes: usize,
    reads: [u32; 2],
) -> usize {
    let mut pipeline = Pipeline::new(clusters, 0, overlaps);
    let mut busy: Vec<Work> = Vec::new();
    let mut in_flight: Vec<usize> = Vec::new();
    let mut stages: Vec<usize> = [0].repeat(clusters);
    let mut steps = 0;
    loop {
        let mut events: Vec<Event> = Vec::new();
        let offered = pipeline.clone().take();
        if busy.len() < lanes && !matches!(offered, Work::Wait | Work::Done) {
            events.push(Event::Take);
        }
        events.extend(busy.iter().map(|&work| Event::Complete(work)));
        if pipeline.clone().take_predicted().is_some() {
            events.push(Event::Admit);
        }
        if pipeline.clone().take_gated().is_some() {
            events.push(Event::AdmitRest);
        }
        let mut awaited = in_flight.clone();
        awaited.dedup();
        events.extend(awaited.into_iter().map(Event::Arrive));
        if pipeline.clone().take_finished().is_some() {
            events.push(Event::Release);
        }
        if events.is_empty() {
            break;
        }
        steps += 1;
        assert!(steps < 1000, "the pipeline does not end");
        match events[exhaust.choose(events.len())] {
            Event::Take => busy.push(pipeline.take()),
            Event::Complete(work) => {
                busy.retain(|&other| other != work);
                let (cluster, stage) = match work {
                    Work::Predict(cluster) => (cluster, 0),
                    Work::Gate(cluster) => (cluster, 1),
                    Work::Finish(cluster) => (cluster, 2),
                    Work::Foresee(_) | Work::Wait | Work::Done => panic!("{work:?} is no work"),
                };
                assert_eq!(stages[cluster], stage, "stages are in order");
                stages[cluster] += 1;
                match stage {
                    0 => pipeline.predicted(cluster),
                    1 => pipeline.gated(cluster),
                    _ => pipeline.finished(cluster),
                }
            }
            Event::Admit => admit(&mut pipeline, &mut in_flight, reads[0], true),
            Event::AdmitRest => admit(&mut pipeline, &mut in_flight, reads[1], false),
            Event::Arrive(cluster) => {
                let at = in_flight.iter().position(|&other| other == cluster);
                in_flight.remove(at.expect("in flight"));
                pipeline.arrived(cluster);
            }
            Event::Release => {
                pipeline.take_finished();
            }
        }
    }
    assert!(pipeline.is_over(), "stuck: {pipeline:?}");
    assert_eq!(pipeline.take(), Work::Done);
    assert!(stages.iter().all(|&stage| stage == 3));
    steps
}

fn admit(pipeline: &mut Pipeline, in_flight: &mut Vec<usize>, reads: u32, first: bool) {
    let cluster = match first {
        true => pipeline.take_predicted(),
        false => pipeline.take_gated(),
    };
    let cluster = cluster.expect("one to admit");
    for _ in 0..reads {
        pipeline.expect(cluster);
        in_flight.push(cluster);
        in_flight.sort_unstable();
    }
    pipeline.all_admitted(cluster);
}

#[test]
fn every_order_of_events_ends_with_every_stage_done_once() {
    let mut paths = 0;
    for (clusters, lanes, reads) in [
        ((1, true), 1, [0, 0]),
        ((1, true), 2, [2, 1]),
        ((2, true), 1, [1, 0]),
        ((2, true), 2, [0, 0]),
        ((2, true), 2, [1, 0]),
        ((2, true), 1, [1, 1]),
        ((2, false), 2, [1, 0]),
        ((2, false), 1, [1, 1]),
    ] {
        let mut exhaust = Exhaust::default();
        loop {
            run(&mut exhaust, clusters, lanes, reads);
            paths += 1;
            if !exhaust.next() {
                break;
            }
        }
    }
    assert!(paths > 10_000, "{paths} paths");
}

#[test]
fn clusters_get_places_in_order() {
    let mut pipeline = Pipeline::new(2, 0, true);
    assert_eq!(pipeline.take(), Work::Predict(0));
    assert_eq!(pipeline.take(), Work::Predict(1));
    pipeline.predicted(1);
    assert_eq!(pipeline.take_predicted(), None);
    pipeline.predicted(0);
    assert!(!pipeline.waits_for_reads());
    assert_eq!(pipeline.take_predicted(), Some(0));
    assert!(pipeline.waits_for_reads());
    // A read that arrives before all are known does not make it ready.
    pipeline.expect(0);
    pipeline.arrived(0);
    assert_eq!(
        (pipeline.take_predicted(), pipeline.take()),
        (Some(0), Work::Wait)
    );
    pipeline.all_admitted(0);
    assert_eq!(
        (pipeline.take_predicted(), pipeline.take()),
        (Some(1), Work::Gate(0))
    );
}

#[test]
fn without_overlap_a_stage_waits_for_all_reads() {
    let mut pipeline = Pipeline::new(2, 0, false);
    for cluster in 0..2 {
        assert_eq!(pipeline.take(), Work::Predict(cluster));
        pipeline.predicted(cluster);
    }
    assert_eq!(pipeline.take_predicted(), Some(0));
    pipeline.all_admitted(0);
    assert_eq!(pipeline.take(), Work::Wait);
    assert_eq!(pipeline.take_predicted(), Some(1));
    pipeline.all_admitted(1);
    for cluster in 0..2 {
        assert_eq!(pipeline.take(), Work::Gate(cluster));
    }
    pipeline.gated(0);
    assert_eq!(pipeline.take_gated(), Some(0));
    pipeline.all_admitted(0);
    assert_eq!(pipeline.take(), Work::Wait);
}

#[test]
fn nothing_is_given_out_after_a_failure() {
    let mut pipeline = Pipeline::new(2, 0, true);
    pipeline.fail();
    assert_eq!((pipeline.take(), pipeline.has_failed()), (Work::Done, true));
    assert!(!pipeline.is_over());
}

#[test]
#[should_panic(expected = "a read of cluster 0 arrived in Predicting")]
fn a_read_that_nobody_awaits_panics() {
    let mut pipeline = Pipeline::new(1, 0, true);
    pipeline.take();
    pipeline.arrived(0);
}

#[test]
fn the_next_section_is_asked_about_after_this_one() {
    let mut pipeline = Pipeline::new(1, 2, true);
    assert_eq!(pipeline.take(), Work::Predict(0));
    assert!(pipeline.is_predicting());
    assert_eq!(pipeline.take(), Work::Foresee(0));
    pipeline.predicted(0);
    assert!(pipeline.is_predicting());
    assert_eq!(pipeline.take(), Work::Foresee(1));
    assert!(!pipeline.is_predicting());
    assert_eq!(pipeline.take(), Work::Wait);
}
