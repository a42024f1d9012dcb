//! A progress bar on standard error.

use std::io::{IsTerminal, stderr};
use std::sync::atomic::{AtomicU64, Ordering};

use indicatif::{ProgressBar, ProgressStyle};

/// Lines that are printed for a whole run where standard error is no terminal.
const LINES: u64 = 10;

/// Shows what is done, the rate and the time left; nothing where standard error is no terminal,
/// unless it is asked for: then a line now and then.
pub struct Bar {
    what: &'static str,
    /// What is counted, where it is not bytes.
    unit: Option<&'static str>,
    bar: Option<ProgressBar>,
    lines: bool,
    line: AtomicU64,
}

impl Bar {
    /// A bar for doing `what`.
    pub fn new(what: &'static str, asked: bool) -> Self {
        Self::with_unit(what, None, asked)
    }

    /// A bar for doing `what`, counted in `unit` instead of bytes.
    pub fn counting(what: &'static str, unit: &'static str, asked: bool) -> Self {
        Self::with_unit(what, Some(unit), asked)
    }

    fn with_unit(what: &'static str, unit: Option<&'static str>, asked: bool) -> Self {
        let terminal = stderr().is_terminal();
        let bar = terminal.then(|| {
            let template = match unit {
                None => "{msg} {wide_bar} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left",
                Some(_) => "{msg} {wide_bar} {pos} of {len}, {eta} left",
            };
            let style = ProgressStyle::with_template(template);
            let bar = ProgressBar::new(0).with_message(what);
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar
        });
        Bar {
            what,
            unit,
            bar,
            lines: asked && !terminal,
            line: AtomicU64::new(0),
        }
    }

    /// `done` of `all` bytes are done.
    pub fn set(&self, done: u64, all: u64) {
        if let Some(bar) = &self.bar {
            bar.set_length(all);
            bar.set_position(bar.position().max(done));
        }
        let line = done * LINES / all.max(1);
        if self.lines && self.line.fetch_max(line, Ordering::Relaxed) < line {
            match self.unit {
                Some(unit) => eprintln!("{} {done} of {all} {unit}", self.what),
                None => {
                    let size = layout_tool::size::text;
                    eprintln!("{} {} of {}", self.what, size(done), size(all));
                }
            }
        }
    }

    /// Removes the bar.
    pub fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
