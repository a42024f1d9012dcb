//! State of a read.

use tessera_hal::IoError;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Idle,
    Loading,
    Arrived,
    Checked,
    Failed(IoError),
}

/// One read and its state, as the region holds it. Its buffer stands elsewhere: the region holds no
/// references.
#[derive(Debug, Clone, Copy, bytemuck::Zeroable, bytemuck::Pod)]
#[repr(C)]
pub struct Slot {
    pub(super) offset: u64,
    pub(super) bytes: u32,
    pub(super) chunk: u32,
    pub(super) tries: u32,
    /// See [`Slot::state`].
    state: u32,
    errno: i32,
    /// Bytes and offset of what is to be read once the read in flight, which nobody wants any more,
    /// has come out; 0 bytes: nothing.
    pub(super) next_bytes: u32,
    pub(super) next_offset: u64,
}

impl Slot {
    /// Makes it a read of `bytes` at `offset` that is to be submitted.
    pub(super) fn begin(&mut self, offset: u64, bytes: u32) {
        (self.offset, self.bytes, self.tries) = (offset, bytes, 0);
        (self.next_offset, self.next_bytes) = (0, 0);
        self.set(State::Idle);
    }

    pub(super) fn state(&self) -> State {
        match self.state {
            0 => State::Idle,
            1 => State::Loading,
            2 => State::Arrived,
            3 => State::Checked,
            4 => State::Failed(IoError::Busy),
            5 => State::Failed(IoError::EndOfImage),
            6 => State::Failed(IoError::Unaligned),
            _ => State::Failed(IoError::Device { errno: self.errno }),
        }
    }

    pub(super) fn set(&mut self, state: State) {
        self.state = match state {
            State::Idle => 0,
            State::Loading => 1,
            State::Arrived => 2,
            State::Checked => 3,
            State::Failed(IoError::Busy) => 4,
            State::Failed(IoError::EndOfImage) => 5,
            State::Failed(IoError::Unaligned) => 6,
            State::Failed(IoError::Device { errno }) => {
                self.errno = errno;
                7
            }
        };
    }
}
