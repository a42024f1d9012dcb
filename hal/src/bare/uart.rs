//! Bytes out of a serial port.

#![allow(unsafe_code)]

/// The serial port of a board: a PL011 (AArch64), an NS16550 (RISC-V; x86-64 by ports), or a UART
/// of Arm's CMSDK (Cortex-M). Only for output, and as set up by whoever came before.
#[derive(Debug)]
pub struct Uart {
    base: usize,
}

impl Uart {
    /// The port whose first register is at `base`.
    ///
    /// # Safety
    /// There is such a port at `base`.
    pub const unsafe fn new(base: usize) -> Self {
        Uart { base }
    }

    /// Sends `bytes`, waiting while the port is full.
    pub fn send(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            // SAFETY: `new` was promised the port.
            unsafe { self.put(byte) };
        }
    }

    /// # Safety
    /// `base` is a PL011.
    #[cfg(target_arch = "aarch64")]
    unsafe fn put(&mut self, byte: u8) {
        const FLAGS: usize = 0x18;
        const FULL: u32 = 1 << 5;
        // SAFETY: registers of the port.
        unsafe {
            while ((self.base + FLAGS) as *const u32).read_volatile() & FULL != 0 {}
            (self.base as *mut u32).write_volatile(u32::from(byte));
        }
    }

    /// # Safety
    /// `base` is an NS16550.
    #[cfg(target_arch = "riscv64")]
    unsafe fn put(&mut self, byte: u8) {
        const LINE_STATUS: usize = 5;
        const EMPTY: u8 = 1 << 5;
        // SAFETY: registers of the port.
        unsafe {
            while ((self.base + LINE_STATUS) as *const u8).read_volatile() & EMPTY == 0 {}
            (self.base as *mut u8).write_volatile(byte);
        }
    }

    /// # Safety
    /// `base` is the first I/O port of an NS16550.
    #[cfg(target_arch = "x86_64")]
    unsafe fn put(&mut self, byte: u8) {
        const LINE_STATUS: u16 = 5;
        const EMPTY: u8 = 1 << 5;
        let port = self.base as u16;
        // SAFETY: ports of the device.
        unsafe {
            loop {
                let status: u8;
                core::arch::asm!("in al, dx", in("dx") port + LINE_STATUS, out("al") status,
                    options(nomem, nostack));
                if status & EMPTY != 0 {
                    break;
                }
            }
            core::arch::asm!("out dx, al", in("dx") port, in("al") byte, options(nomem, nostack));
        }
    }

    /// # Safety
    /// `base` is a CMSDK UART.
    #[cfg(target_arch = "arm")]
    unsafe fn put(&mut self, byte: u8) {
        const STATE: usize = 4;
        const FULL: u32 = 1;
        const CONTROL: usize = 8;
        const TRANSMIT: u32 = 1;
        // SAFETY: registers of the port.
        unsafe {
            ((self.base + CONTROL) as *mut u32).write_volatile(TRANSMIT);
            while ((self.base + STATE) as *const u32).read_volatile() & FULL != 0 {}
            (self.base as *mut u32).write_volatile(u32::from(byte));
        }
    }
}

impl core::fmt::Write for Uart {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        self.send(text.as_bytes());
        Ok(())
    }
}
