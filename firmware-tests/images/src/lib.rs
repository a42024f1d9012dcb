//! What the images share: the machine they run on, and a model that runs on it.
#![no_std]

mod boot;
pub mod faulty;
#[cfg(feature = "defmt")]
mod frames;
pub mod machine;
pub mod model;

use core::fmt::Write;
use core::panic::PanicInfo;

use machine::Console;

/// Status of an image that is done.
const DONE: u8 = 21;
/// Status of an image that panicked.
const PANICKED: u8 = 50;

/// Writes a line to the console.
#[macro_export]
macro_rules! say {
    ($($argument:tt)*) => {{
        use core::fmt::Write;
        let _ = writeln!($crate::machine::Console, $($argument)*);
    }};
}

/// Names the function that an image runs.
#[macro_export]
macro_rules! image {
    ($run:path) => {
        /// Called by the machine's entry point.
        // SAFETY: an image names its function once.
        #[unsafe(no_mangle)]
        extern "C" fn begin() -> ! {
            $crate::machine::paint_stack();
            $run();
            $crate::done()
        }
    };
}

/// Ends a run that went well.
pub fn done() -> ! {
    // Where frames are sent, text would be taken for one.
    if !cfg!(feature = "defmt") {
        say!("done");
    }
    tessera_hal::bare::exit(DONE)
}

fn fail() -> ! {
    tessera_hal::bare::exit(PANICKED)
}

#[panic_handler]
fn panicked(info: &PanicInfo<'_>) -> ! {
    let _ = writeln!(Console, "{info}");
    fail()
}
