//! Log frames over the serial port, which the host decodes with the strings in the image's file.

use core::cell::UnsafeCell;

use tessera_hal::bare::Uart;

use crate::boot;

struct Encoder(UnsafeCell<defmt::Encoder>);

// SAFETY: images log on one core and in no interrupt.
unsafe impl Sync for Encoder {}

static ENCODER: Encoder = Encoder(UnsafeCell::new(defmt::Encoder::new()));

fn send(bytes: &[u8]) {
    // SAFETY: every machine here has its port there.
    unsafe { Uart::new(boot::UART) }.send(bytes);
}

fn encoder() -> &'static mut defmt::Encoder {
    // SAFETY: the one core that logs is in one call at a time, and no call keeps it.
    unsafe { &mut *ENCODER.0.get() }
}

#[defmt::global_logger]
struct Port;

// SAFETY: one core logs, so a frame is not interrupted by another.
unsafe impl defmt::Logger for Port {
    fn acquire() {
        encoder().start_frame(send);
    }

    unsafe fn flush() {}

    unsafe fn release() {
        encoder().end_frame(send);
    }

    unsafe fn write(bytes: &[u8]) {
        encoder().write(bytes, send);
    }
}
