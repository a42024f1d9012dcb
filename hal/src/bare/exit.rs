//! The end of a run in an emulator.

#![allow(unsafe_code)]

/// Port of QEMU's `isa-debug-exit`.
#[cfg(target_arch = "x86_64")]
const EXIT_PORT: u16 = 0xf4;
/// Semihosting: end with a reason and a status.
#[cfg(not(target_arch = "x86_64"))]
const SYS_EXIT_EXTENDED: usize = 0x20;
/// Semihosting: the program ended by itself.
#[cfg(not(target_arch = "x86_64"))]
const APPLICATION_EXIT: usize = 0x2_0026;

/// Ends the emulation: with status `code` by semihosting, with `2 * code + 1` on x86-64 by the port
/// of `isa-debug-exit`. On real hardware the core waits forever.
pub fn exit(code: u8) -> ! {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a write to a port that is QEMU's, or nobody's.
    unsafe {
        core::arch::asm!("out dx, eax", in("dx") EXIT_PORT, in("eax") u32::from(code),
            options(nomem, nostack));
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: the block is what the call reads.
    unsafe {
        let block = [APPLICATION_EXIT, usize::from(code)];
        semihosting(SYS_EXIT_EXTENDED, block.as_ptr());
    }
    loop {
        core::hint::spin_loop();
    }
}

/// A semihosting call.
///
/// # Safety
/// `block` points to what the call `number` reads.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn semihosting(number: usize, block: *const usize) {
    #[cfg(target_arch = "aarch64")]
    // SAFETY: promised by the caller; the call changes nothing but the first register.
    unsafe {
        core::arch::asm!("hlt #0xf000", inlateout("x0") number => _, in("x1") block,
            options(nostack));
    }
    #[cfg(target_arch = "arm")]
    // SAFETY: as above.
    unsafe {
        core::arch::asm!("bkpt #0xab", inlateout("r0") number => _, in("r1") block,
            options(nostack));
    }
    // The two shifts around the trap, uncompressed and in one page, are how the call is known.
    #[cfg(target_arch = "riscv64")]
    // SAFETY: as above.
    unsafe {
        core::arch::asm!(
            ".option push", ".option norvc", ".balign 16",
            "slli x0, x0, 0x1f", "ebreak", "srai x0, x0, 7",
            ".option pop",
            inlateout("a0") number => _, in("a1") block, options(nostack)
        );
    }
}
