//! Flash reads by a few threads that block in `pread`: works everywhere.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::source::Source;
use super::{DROP_WAIT_NS, FlashStats};
use crate::flash::{IoError, Read};

/// A reader needs little stack: it calls the system and nothing else.
const READER_STACK_BYTES: usize = 64 << 10;

/// What the device and its threads share under the lock. No queue ever grows past its capacity.
#[derive(Debug)]
struct Queues {
    submitted: VecDeque<Read<'static>>,
    done: VecDeque<(Read<'static>, Result<(), IoError>)>,
    /// Threads that sleep until something is submitted.
    idle: usize,
    /// Whether the device sleeps until something is done.
    waiting: bool,
    stop: bool,
    stats: FlashStats,
}

#[derive(Debug)]
struct Shared {
    source: Source,
    queues: Mutex<Queues>,
    submitted: Condvar,
    done: Condvar,
}

/// A queue of reads served by threads.
#[derive(Debug)]
pub(crate) struct PreadFlash {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    depth: usize,
    in_flight: usize,
    /// Held back until the next flush, so that a batch takes the lock once.
    staged: VecDeque<Read<'static>>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A reader thread's life.
    fn serve(&self) {
        loop {
            let mut queues = self.lock();
            let mut read = loop {
                if let Some(read) = queues.submitted.pop_front() {
                    break read;
                }
                if queues.stop {
                    return;
                }
                queues.idle += 1;
                queues = self
                    .submitted
                    .wait(queues)
                    .unwrap_or_else(PoisonError::into_inner);
                queues.idle -= 1;
            };
            drop(queues);
            let (result, progress) = self.source.read_whole(&mut read);
            let mut queues = self.lock();
            queues.stats.count(result, &progress);
            queues.done.push_back((read, result));
            if queues.waiting {
                self.done.notify_one();
            }
        }
    }
}

impl PreadFlash {
    /// Starts `readers` threads; the error is the system's number.
    pub(crate) fn new(source: Source, depth: usize, readers: usize) -> Result<Self, i32> {
        let queues = Queues {
            submitted: VecDeque::with_capacity(depth),
            done: VecDeque::with_capacity(depth),
            idle: 0,
            waiting: false,
            stop: false,
            stats: FlashStats::default(),
        };
        let shared = Arc::new(Shared {
            source,
            queues: Mutex::new(queues),
            submitted: Condvar::new(),
            done: Condvar::new(),
        });
        let threads = Vec::with_capacity(readers);
        let staged = VecDeque::with_capacity(depth);
        let mut flash = PreadFlash {
            shared,
            threads,
            depth,
            in_flight: 0,
            staged,
        };
        let (sender, receiver) = mpsc::channel();
        for index in 0..readers {
            let (shared, sender) = (Arc::clone(&flash.shared), sender.clone());
            let builder = thread::Builder::new()
                .name(format!("tessera-read{index}"))
                .stack_size(READER_STACK_BYTES);
            let started = move || {
                // The receiver waits for every reader, so it is there.
                let _ = sender.send(());
                drop(sender);
                shared.serve()
            };
            match builder.spawn(started) {
                Ok(thread) => flash.threads.push(thread),
                Err(error) if flash.threads.is_empty() => {
                    return Err(error.raw_os_error().unwrap_or(libc::EAGAIN));
                }
                Err(_) => break, // Fewer readers than hoped for.
            }
        }
        // What starting a thread allocates shall not fall into the time of a token.
        drop(sender);
        receiver.into_iter().for_each(drop);
        Ok(flash)
    }

    pub(crate) fn readers(&self) -> usize {
        self.threads.len()
    }

    pub(crate) fn stats(&self) -> FlashStats {
        self.shared.lock().stats
    }

    pub(crate) fn source(&self) -> &Source {
        &self.shared.source
    }

    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    pub(crate) fn submit(&mut self, read: Read<'static>) -> Result<(), (IoError, Read<'static>)> {
        if let Err(error) = self.shared.source.check(&read) {
            return Err((error, read));
        }
        if self.in_flight == self.depth {
            return Err((IoError::Busy, read));
        }
        self.in_flight += 1;
        self.staged.push_back(read);
        Ok(())
    }

    pub(crate) fn flush(&mut self) {
        if !self.staged.is_empty() {
            let mut queues = self.shared.lock();
            Self::hand_over(&mut self.staged, &self.shared, &mut queues);
        }
    }

    fn hand_over(staged: &mut VecDeque<Read<'static>>, shared: &Shared, queues: &mut Queues) {
        let wake = staged.len().min(queues.idle);
        queues.submitted.append(staged);
        for _reader in 0..wake {
            shared.submitted.notify_one();
        }
    }

    pub(crate) fn reap(&mut self) -> Option<(Read<'static>, Result<(), IoError>)> {
        if self.in_flight == 0 {
            return None;
        }
        let mut queues = self.shared.lock();
        Self::hand_over(&mut self.staged, &self.shared, &mut queues);
        let done = queues.done.pop_front()?;
        self.in_flight -= 1;
        Some(done)
    }

    pub(crate) fn wait(&mut self, timeout_ns: u64) -> bool {
        if self.in_flight == 0 {
            return false;
        }
        let mut queues = self.shared.lock();
        Self::hand_over(&mut self.staged, &self.shared, &mut queues);
        let deadline = Instant::now().checked_add(Duration::from_nanos(timeout_ns));
        while queues.done.is_empty() {
            let left = match deadline {
                Some(deadline) => deadline.saturating_duration_since(Instant::now()),
                None => Duration::MAX,
            };
            if left.is_zero() {
                return false;
            }
            queues.waiting = true;
            queues = match self.shared.done.wait_timeout(queues, left) {
                Ok((queues, _)) => queues,
                Err(poisoned) => poisoned.into_inner().0,
            };
            queues.waiting = false;
        }
        true
    }
}

impl Drop for PreadFlash {
    /// Waits for reads in flight; a thread that does not finish keeps its buffer and is left.
    fn drop(&mut self) {
        {
            let mut queues = self.shared.lock();
            queues.stop = true;
            self.in_flight -= self.staged.len() + queues.submitted.len();
            self.staged.clear();
            queues.submitted.clear();
        }
        self.shared.submitted.notify_all();
        let deadline = Instant::now() + Duration::from_nanos(DROP_WAIT_NS);
        while self.in_flight > 0 && Instant::now() < deadline {
            if self.reap().is_none() {
                self.wait(DROP_WAIT_NS / 100);
            }
        }
        if self.in_flight == 0 {
            for thread in self.threads.drain(..) {
                let _ = thread.join();
            }
        }
    }
}
