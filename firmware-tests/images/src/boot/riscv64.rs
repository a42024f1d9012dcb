//! QEMU's `virt` board without firmware: every hart enters in machine mode.

use core::sync::atomic::{AtomicU32, Ordering};

core::arch::global_asm!(
    r#"
.section .text._start,"ax"
.global _start
_start:
    li   t0, 0x2000             // floats
    csrs mstatus, t0
    csrr t0, mhartid
    bnez t0, further_hart
    la   t0, __bss_start
    la   t1, __bss_end
1:  bgeu t0, t1, 2f
    sd   zero, 0(t0)
    addi t0, t0, 8
    j    1b
2:  la   sp, __stack_top
    call begin

// Waits until its turn has come: harts up to the number that was released.
further_hart:
    la   t1, {released}
3:  lw   t2, 0(t1)
    bltu t2, t0, 3b
    fence
    la   sp, __further_top
    addi t0, t0, -1
    slli t0, t0, 16             // stacks of 64 KiB
    sub  sp, sp, t0
    call further
4:  wfi
    j    4b
"#,
    released = sym RELEASED
);

/// An NS16550.
pub const UART: usize = 0x1000_0000;
/// Where QEMU's loader puts an image in memory.
pub const IMAGE: usize = 0x8800_0000;
/// Registers of the virtio devices: the first, the distance, how many.
pub const VIRTIO: (usize, usize, usize) = (0x1000_1000, 0x1000, 8);
/// Of `time`.
pub const CLOCK_HZ: u64 = 10_000_000;

/// The last hart that may go on. Not in `.bss`, which is being cleared while harts look.
// SAFETY: the linker script places the section among initialised data.
#[unsafe(link_section = ".data.released")]
static RELEASED: AtomicU32 = AtomicU32::new(0);

/// Lets hart `core` go on, if there is one.
pub fn start(core: usize) {
    RELEASED.fetch_max(core as u32, Ordering::Release);
}
