//! Log frames over the serial port, which the host decodes with the strings in the image's file.

use spin::mutex::SpinMutex;
use tessera_hal::bare::Uart;

use crate::boot;

static ENCODER: SpinMutex<defmt::Encoder> = SpinMutex::new(defmt::Encoder::new());

fn send(bytes: &[u8]) {
    // SAFETY: every machine here has its port there.
    unsafe { Uart::new(boot::UART) }.send(bytes);
}

#[defmt::global_logger]
struct Port;

// SAFETY: one core logs, so a frame is not interrupted by another.
unsafe impl defmt::Logger for Port {
    fn acquire() {
        ENCODER.lock().start_frame(send);
    }

    unsafe fn flush() {}

    unsafe fn release() {
        ENCODER.lock().end_frame(send);
    }

    unsafe fn write(bytes: &[u8]) {
        ENCODER.lock().write(bytes, send);
    }
}
