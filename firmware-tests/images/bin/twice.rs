//! Asks for the disk twice, which would share its requests: it must be refused.
#![no_std]
#![no_main]

use images::machine::disk;

images::image!(run);

fn run() {
    let _disk = disk();
    images::say!("begun");
    let _again = disk();
}
