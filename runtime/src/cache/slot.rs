//! One place of the cold cache, and the states it goes through.

use bytemuck::{Pod, Zeroable};

/// What a slot is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub struct State(u8);

impl State {
    /// Holds nothing, and may be taken.
    pub const FREE: State = State(0);
    /// Its bundle is being read.
    pub const LOADING: State = State(1);
    /// Its bundle is in memory.
    pub const PRESENT: State = State(2);
    /// Its read was given up; it holds nothing, and waits for its pins to be dropped.
    pub const ABANDONED: State = State(3);
    /// Past the cache's limit: its memory is not the cache's.
    pub const CLOSED: State = State(4);
}

/// The books of a slot.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct Slot {
    /// How many hold it.
    pub pins: u32,
    /// What it is doing.
    pub state: State,
    guess: u8,
    padding: [u8; 2],
}

impl Slot {
    /// A slot in `state` that nobody holds.
    pub const fn new(state: State) -> Self {
        Slot {
            pins: 0,
            state,
            guess: 0,
            padding: [0; 2],
        }
    }

    /// Whether its bundle was prefetched, and nobody has asked for it yet.
    pub fn is_guess(&self) -> bool {
        self.guess != 0
    }

    /// Says whether its bundle is a guess.
    pub fn set_guess(&mut self, guess: bool) {
        self.guess = guess as u8;
    }
}
