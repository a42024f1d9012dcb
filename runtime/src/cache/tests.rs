//! The cold cache against models that are plain vectors.

use super::*;

const POLICIES: [PolicyKind; 2] = [PolicyKind::Lru, PolicyKind::Frequency];

/// Runs a test body once for each sequence of choices it could make.
#[derive(Default)]
struct Exhaust {
    choices: [(u8, u8); 16],
    len: usize,
    at: usize,
    started: bool,
}

impl Exhaust {
    /// True while there is another run to make.
    fn next_run(&mut self) -> bool {
        self.at = 0;
        if !core::mem::replace(&mut self.started, true) {
            return true;
        }
        while let Some((choice, last)) = self.len.checked_sub(1).map(|i| self.choices[i]) {
            if choice < last {
                self.choices[self.len - 1].0 += 1;
                return true;
            }
            self.len -= 1;
        }
        false
    }

    /// Some number below `count`; over all runs, each of them.
    fn pick(&mut self, count: usize) -> usize {
        assert!((1..=256).contains(&count));
        if self.at == self.len {
            self.choices[self.len] = (0, (count - 1) as u8);
            self.len += 1;
        }
        self.at += 1;
        self.choices[self.at - 1].0 as usize
    }
}

/// Marsaglia's xorshift.
struct Random(u32);

impl Random {
    fn below(&mut self, count: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 17;
        self.0 ^= self.0 << 5;
        self.0 as usize % count
    }
}

fn region(n_bundles: usize, n_slots: usize, policy: PolicyKind) -> Vec<u8> {
    vec![0xa5; Cache::bytes(n_bundles, n_slots, policy) + 4096]
}

fn cache(region: &mut [u8], n_bundles: usize, n_slots: usize, policy: PolicyKind) -> Cache<'_> {
    let mut arena = Arena::new(region);
    let cache = Cache::new(&mut arena, n_bundles, n_slots, policy).unwrap();
    assert_eq!(
        arena.taken_bytes(),
        Cache::bytes(n_bundles, n_slots, policy)
    );
    cache
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Op {
    Acquire(u32),
    Prefetch(u32),
    Fill(u32),
    Arrived(usize),
    Abandon(usize),
    Release(usize),
    SetLimit(usize),
    Shrink(usize),
}

/// What the cache promises, whatever its policy: it may choose a slot, the model checks the choice.
struct Model {
    n_bundles: u32,
    /// State, bundle and pins of each slot.
    slots: Vec<(State, Option<u32>, u32)>,
    limit: usize,
}

impl Model {
    fn new(n_bundles: u32, n_slots: usize) -> Self {
        Model {
            n_bundles,
            slots: vec![(State::FREE, None, 0); n_slots],
            limit: n_slots,
        }
    }

    /// Every call that is no mistake.
    fn ops(&self) -> Vec<Op> {
        let mut ops = Vec::new();
        for bundle in 0..self.n_bundles {
            ops.extend([Op::Acquire(bundle), Op::Prefetch(bundle), Op::Fill(bundle)]);
        }
        for (slot, &(state, _, pins)) in self.slots.iter().enumerate() {
            if state == State::LOADING {
                ops.extend([Op::Arrived(slot), Op::Abandon(slot)]);
            }
            if pins > 0 {
                ops.push(Op::Release(slot));
            }
        }
        ops.extend((0..=self.slots.len()).map(Op::SetLimit));
        ops.extend((0..=self.limit).map(Op::Shrink));
        ops
    }

    fn find(&self, bundle: u32) -> Option<usize> {
        self.slots.iter().position(|slot| slot.1 == Some(bundle))
    }

    fn can_take(&self, slot: usize) -> bool {
        let (state, _, pins) = self.slots[slot];
        let any_free = self.slots.iter().any(|slot| slot.0 == State::FREE);
        state == State::FREE || (!any_free && state == State::PRESENT && pins == 0)
    }

    /// What nobody holds and is not being read ends.
    fn settle(&mut self) {
        for (index, slot) in self.slots.iter_mut().enumerate() {
            let past = index >= self.limit;
            *slot = match *slot {
                (State::ABANDONED | State::FREE, _, 0) if past => (State::CLOSED, None, 0),
                (State::PRESENT, _, 0) if past => (State::CLOSED, None, 0),
                (State::ABANDONED, _, 0) => (State::FREE, None, 0),
                (State::CLOSED, _, 0) if !past => (State::FREE, None, 0),
                slot => slot,
            };
        }
    }

    /// Makes one call to `cache`, and checks its answer.
    fn step(&mut self, cache: &mut Cache<'_>, op: Op) {
        let slot_of = |slot: usize| SlotIndex(slot as u32);
        match op {
            Op::Acquire(bundle) => self.acquire(bundle, cache.acquire(BundleIndex(bundle))),
            Op::Prefetch(bundle) => match cache.prefetch(BundleIndex(bundle)) {
                Some(slot) => {
                    let slot = slot.0 as usize;
                    assert!(self.find(bundle).is_none() && self.can_take(slot));
                    self.slots[slot] = (State::LOADING, Some(bundle), 0);
                }
                None => {
                    let free = self.slots.iter().any(|slot| slot.0 == State::FREE);
                    assert!(self.find(bundle).is_some() || !free);
                }
            },
            Op::Fill(bundle) => {
                let free = self.slots.iter().any(|slot| slot.0 == State::FREE);
                let filled = cache.fill(BundleIndex(bundle));
                assert_eq!(filled.is_some(), free && self.find(bundle).is_none());
                if let Some(SlotIndex(slot)) = filled {
                    assert_eq!(self.slots[slot as usize].0, State::FREE);
                    self.slots[slot as usize] = (State::LOADING, Some(bundle), 0);
                }
            }
            Op::Arrived(slot) => {
                cache.arrived(slot_of(slot));
                self.slots[slot].0 = State::PRESENT;
            }
            Op::Abandon(slot) => {
                cache.abandon(slot_of(slot));
                self.slots[slot] = (State::ABANDONED, None, self.slots[slot].2);
            }
            Op::Release(slot) => {
                cache.release(slot_of(slot));
                self.slots[slot].2 -= 1;
            }
            Op::SetLimit(limit) => {
                let owed = cache.set_limit(limit);
                self.limited(limit, owed);
            }
            Op::Shrink(limit) => {
                let before = self.slots.clone();
                let guess: Vec<bool> = cache.slots.iter().map(Slot::is_guess).collect();
                let owed = cache.shrink(limit, &mut |SlotIndex(from), SlotIndex(to)| {
                    let (from, to) = (from as usize, to as usize);
                    assert!(to < limit && limit <= from);
                    for slot in [before[from], self.slots[from]] {
                        assert_eq!((slot.0, slot.2), (State::PRESENT, 0));
                    }
                    // An empty slot, or an idle one whose bundle is given up.
                    assert!([State::FREE, State::PRESENT].contains(&self.slots[to].0));
                    assert_eq!(self.slots[to].2, 0);
                    self.slots[to] = self.slots[from];
                    self.slots[from] = (State::FREE, None, 0);
                });
                // Nothing is lost while a slot is free.
                let lost = |slot: usize| {
                    let (state, bundle, pins) = before[slot];
                    let idle = state == State::PRESENT && pins == 0 && !guess[slot];
                    slot >= limit && idle && bundle.is_some_and(|b| self.find(b) == Some(slot))
                };
                let free = self.slots[..limit].iter().any(|slot| slot.0 == State::FREE);
                assert!(!free || !(0..before.len()).any(lost));
                self.limited(limit, owed);
            }
        }
        self.settle();
        self.compare(cache);
    }

    fn limited(&mut self, limit: usize, owed: usize) {
        self.limit = limit;
        self.settle();
        let open = |slot: &&(State, Option<u32>, u32)| slot.0 != State::CLOSED;
        assert_eq!(owed, self.slots[limit..].iter().filter(open).count());
    }

    fn acquire(&mut self, bundle: u32, answer: Result<Acquired, Full>) {
        match answer {
            Ok(Acquired::Present(SlotIndex(slot))) => {
                let slot = &mut self.slots[slot as usize];
                assert_eq!((slot.0, slot.1), (State::PRESENT, Some(bundle)));
                slot.2 += 1;
            }
            Ok(Acquired::Loading(SlotIndex(slot))) => {
                let slot = &mut self.slots[slot as usize];
                assert_eq!((slot.0, slot.1), (State::LOADING, Some(bundle)));
                slot.2 += 1;
            }
            Ok(Acquired::Reserved(SlotIndex(slot))) => {
                assert!(self.find(bundle).is_none() && self.can_take(slot as usize));
                self.slots[slot as usize] = (State::LOADING, Some(bundle), 1);
            }
            Err(Full) => {
                assert!(self.find(bundle).is_none());
                assert!((0..self.slots.len()).all(|slot| !self.can_take(slot)));
            }
        }
    }

    fn compare(&self, cache: &Cache<'_>) {
        let count = |is: &dyn Fn(&(State, Option<u32>, u32)) -> bool| {
            self.slots.iter().filter(|&slot| is(slot)).count()
        };
        assert_eq!(cache.slots(), self.limit);
        assert_eq!(cache.pinned(), count(&|slot| slot.2 > 0));
        assert_eq!(cache.loading(), count(&|slot| slot.0 == State::LOADING));
        for (index, slot) in self.slots.iter().enumerate() {
            let have = cache.slots[index];
            let bundle = cache.bundle(SlotIndex(index as u32));
            assert_eq!(
                (have.state, bundle, have.pins),
                (slot.0, slot.1.map(BundleIndex), slot.2)
            );
        }
        for bundle in 0..self.n_bundles {
            let present = self
                .find(bundle)
                .is_some_and(|s| self.slots[s].0 == State::PRESENT);
            assert_eq!(cache.is_present(BundleIndex(bundle)), present);
        }
        no_slot_lost(cache);
    }
}

/// Slots of `list`, newest first; links must be the same in both directions.
fn walk(cache: &Cache<'_>, list: List) -> Vec<usize> {
    let forth = cache.links.walk(list, true);
    let mut back = cache.links.walk(list, false);
    back.reverse();
    assert_eq!(forth, back);
    forth
}

/// Every slot is in the one list of its state, or in none where it is in use.
fn no_slot_lost(cache: &Cache<'_>) {
    let idle = match &cache.rule {
        Rule::Lru(rule) => rule.lists().to_vec(),
        Rule::Frequency(rule) => rule.lists().to_vec(),
    };
    let mut listed = vec![0; cache.slots.len()];
    let mut note = |list: List, state: State, guess: bool| {
        for slot in walk(cache, list) {
            listed[slot] += 1;
            let have = cache.slots[slot];
            assert_eq!(
                (have.state, have.is_guess(), have.pins),
                (state, guess, 0),
                "slot {slot}"
            );
        }
    };
    note(cache.free, State::FREE, false);
    note(cache.guesses, State::PRESENT, true);
    for list in idle.into_iter().filter(|list| list.oldest().is_some()) {
        note(list, State::PRESENT, false);
    }
    for (index, slot) in cache.slots.iter().enumerate() {
        let waits = slot.pins == 0 && [State::FREE, State::PRESENT].contains(&slot.state);
        assert_eq!(listed[index], waits as usize, "slot {index}: {slot:?}");
    }
    let guesses = cache.slots.iter().filter(|slot| slot.is_guess()).count();
    assert_eq!(cache.n_guesses, guesses);
}

#[test]
fn every_sequence_of_calls_at_small_sizes() {
    for policy in POLICIES {
        for (n_slots, steps) in [(1, 6), (2, 5), (3, 4)] {
            let n_bundles = n_slots + 1;
            let mut region = region(n_bundles, n_slots, policy);
            let mut exhaust = Exhaust::default();
            let mut runs = 0;
            while exhaust.next_run() {
                let mut cache = cache(&mut region, n_bundles, n_slots, policy);
                let mut model = Model::new(n_bundles as u32, n_slots);
                for _ in 0..steps {
                    let mut ops = model.ops();
                    // It does nearly what a guess does, and sequences would be too many.
                    ops.retain(|op| !matches!(op, Op::Fill(_)));
                    model.step(&mut cache, ops[exhaust.pick(ops.len())]);
                }
                runs += 1;
            }
            assert!(runs > 30_000, "{runs} runs");
        }
    }
}

#[test]
fn long_random_sequences_of_calls() {
    for policy in POLICIES {
        for seed in 1..40 {
            let mut random = Random(seed);
            let n_slots = 1 + random.below(40);
            let n_bundles = n_slots + random.below(60);
            let mut region = region(n_bundles, n_slots, policy);
            let mut cache = cache(&mut region, n_bundles, n_slots, policy);
            for bundle in 0..n_bundles {
                cache.seed(BundleIndex(bundle as u32), random.below(256) as u8);
            }
            let mut model = Model::new(n_bundles as u32, n_slots);
            for _ in 0..1000 {
                let mut ops = model.ops();
                // Reads and pins end as often as they begin, and the limit changes seldom.
                if random.below(2) == 0 {
                    let ends =
                        |op: &Op| matches!(op, Op::Arrived(_) | Op::Abandon(_) | Op::Release(_));
                    if ops.iter().any(ends) {
                        ops.retain(ends);
                    }
                } else if random.below(8) > 0 {
                    ops.retain(|op| !matches!(op, Op::SetLimit(_) | Op::Shrink(_)));
                }
                model.step(&mut cache, ops[random.below(ops.len())]);
            }
        }
    }
}

/// Reads `bundle` and lets it go at once; true if it was there.
fn touch(cache: &mut Cache<'_>, bundle: u32) -> bool {
    match cache.acquire(BundleIndex(bundle)).unwrap() {
        Acquired::Present(slot) => {
            cache.release(slot);
            true
        }
        Acquired::Reserved(slot) => {
            cache.arrived(slot);
            cache.release(slot);
            false
        }
        Acquired::Loading(slot) => panic!("{slot:?} is loading"),
    }
}

#[test]
fn lru_keeps_what_a_vector_of_the_last_keeps() {
    for seed in 1..50 {
        let mut random = Random(seed);
        let n_slots = 1 + random.below(20);
        let mut region = region(50, n_slots, PolicyKind::Lru);
        let mut cache = cache(&mut region, 50, n_slots, PolicyKind::Lru);
        let mut recent: Vec<u32> = Vec::new();
        for _ in 0..2000 {
            let bundle = random.below(50).min(random.below(50)) as u32;
            let known = recent.iter().position(|&other| other == bundle);
            if let Some(at) = known {
                recent.remove(at);
            }
            recent.insert(0, bundle);
            recent.truncate(n_slots);
            assert_eq!(touch(&mut cache, bundle), known.is_some(), "seed {seed}");
            for other in 0..50 {
                let want = recent.contains(&other);
                assert_eq!(cache.is_present(BundleIndex(other)), want, "seed {seed}");
            }
        }
    }
}

#[test]
fn a_later_seed_replaces_one_that_was_wrong() {
    let mut region = region(3, 2, PolicyKind::Frequency);
    let mut cache = cache(&mut region, 3, 2, PolicyKind::Frequency);
    for (bundle, share) in [(0, 255), (0, 0), (1, 100)] {
        cache.seed(BundleIndex(bundle), share);
    }
    for bundle in 0..3 {
        touch(&mut cache, bundle);
    }
    assert!(!cache.is_present(BundleIndex(0)) && cache.is_present(BundleIndex(1)));
}

#[test]
fn a_shrink_keeps_what_was_used_last() {
    for seed in 1..200 {
        let mut random = Random(seed);
        let n_slots = 1 + random.below(20);
        let mut region = region(50, n_slots, PolicyKind::Lru);
        let mut cache = cache(&mut region, 50, n_slots, PolicyKind::Lru);
        let mut recent: Vec<u32> = Vec::new();
        for _ in 0..300 {
            let bundle = random.below(50).min(random.below(50)) as u32;
            recent.retain(|&other| other != bundle);
            recent.insert(0, bundle);
            if random.below(10) == 0 {
                let limit = 1 + random.below(n_slots);
                if limit < cache.slots() {
                    cache.shrink(limit, &mut |_, _| {});
                } else {
                    cache.set_limit(limit);
                }
                // The bundle in hand comes after.
                let kept = recent.drain(..1).collect::<Vec<_>>();
                recent.truncate(limit);
                recent.splice(0..0, kept);
            }
            recent.truncate(cache.slots());
            touch(&mut cache, bundle);
            for other in 0..50 {
                let want = recent.contains(&other);
                assert_eq!(cache.is_present(BundleIndex(other)), want, "seed {seed}");
            }
        }
    }
}

#[test]
fn what_is_held_survives_a_shrink_and_goes_with_its_last_pin() {
    for policy in POLICIES {
        let mut region = region(8, 4, policy);
        let mut cache = cache(&mut region, 8, 4, policy);
        for bundle in 0..4 {
            touch(&mut cache, bundle);
        }
        let Ok(Acquired::Present(held)) = cache.acquire(BundleIndex(2)) else {
            panic!("bundle 2 is gone");
        };
        assert_eq!(cache.set_limit(0), 1);
        assert_eq!(cache.acquire(BundleIndex(0)), Err(Full));
        assert_eq!(cache.acquire(BundleIndex(2)), Ok(Acquired::Present(held)));
        cache.release(held);
        assert_eq!(cache.set_limit(0), 1);
        cache.release(held);
        assert_eq!(cache.set_limit(0), 0);
        assert!(!cache.is_present(BundleIndex(2)));
        assert_eq!(cache.set_limit(4), 0);
        assert!(!touch(&mut cache, 2));
    }
}

#[test]
fn guesses_hold_no_more_than_their_part() {
    for policy in POLICIES {
        let mut region = region(200, 32, policy);
        let mut cache = cache(&mut region, 200, 32, policy);
        for bundle in 0..32 {
            touch(&mut cache, bundle);
        }
        for bundle in 100..200 {
            if let Some(slot) = cache.prefetch(BundleIndex(bundle)) {
                cache.arrived(slot);
            }
        }
        let kept = (0..32).filter(|&bundle| cache.is_present(BundleIndex(bundle)));
        assert!(kept.count() >= 30);
    }
}

#[test]
fn guesses_that_nobody_wants_leave() {
    for policy in POLICIES {
        let mut region = region(200, 32, policy);
        let mut cache = cache(&mut region, 200, 32, policy);
        for bundle in 0..32 {
            let slot = cache.prefetch(BundleIndex(bundle)).unwrap();
            cache.arrived(slot);
        }
        for bundle in 32..132 {
            touch(&mut cache, bundle);
        }
        assert!((0..32).all(|bundle| !cache.is_present(BundleIndex(bundle))));
    }
}

#[test]
#[should_panic(expected = "slot 1 released without a pin")]
fn a_release_too_many_is_a_mistake() {
    let mut region = region(3, 2, PolicyKind::Lru);
    cache(&mut region, 3, 2, PolicyKind::Lru).release(SlotIndex(1));
}

#[test]
#[should_panic(expected = "slot 0 is not loading")]
fn an_arrival_without_a_read_is_a_mistake() {
    let mut region = region(3, 2, PolicyKind::Lru);
    cache(&mut region, 3, 2, PolicyKind::Lru).arrived(SlotIndex(0));
}

#[test]
#[should_panic(expected = "bundle 3 of 3")]
fn a_bundle_past_the_last_is_a_mistake() {
    let mut region = region(3, 2, PolicyKind::Lru);
    let _ = cache(&mut region, 3, 2, PolicyKind::Lru).acquire(BundleIndex(3));
}

#[test]
#[should_panic(expected = "limit of 3 slots of 2")]
fn a_limit_past_the_last_slot_is_a_mistake() {
    let mut region = region(3, 2, PolicyKind::Lru);
    cache(&mut region, 3, 2, PolicyKind::Lru).set_limit(3);
}

#[test]
fn a_region_too_small_is_refused_with_what_it_lacks() {
    for policy in POLICIES {
        let mut region = region(100, 10, policy);
        let short = Cache::bytes(100, 10, policy) - 64;
        let start = region.as_ptr().align_offset(4096);
        let mut arena = Arena::new(&mut region[start..start + short]);
        let refused = Cache::new(&mut arena, 100, 10, policy).err().unwrap();
        assert!(refused.short_bytes <= 64, "{refused:?}");
    }
    assert_eq!(
        Cache::bytes(usize::MAX, 1, PolicyKind::Frequency),
        usize::MAX
    );
}
