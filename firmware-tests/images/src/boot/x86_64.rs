//! QEMU's `microvm`, entered as PVH in 32-bit protected mode.

// The first GiB is memory; the fourth has the devices. Pages of 2 MiB, identity-mapped. The CPU
// gets SSE and AVX before any Rust code, which is compiled to use them.
core::arch::global_asm!(
    r#"
.section .note.pvh,"a",@note
.align 4
.long 4, 4, 18
.asciz "Xen"
.long _start
.section .text._start,"ax"
.code32
.global _start
_start:
    cli
    movl $__stack_top, %esp
    movl $__bss_start, %edi
    movl $__bss_end, %ecx
    subl %edi, %ecx
    xorl %eax, %eax
    rep stosb
    movl $low, %eax
    orl $3, %eax
    movl %eax, third
    movl $high, %eax
    orl $3, %eax
    movl %eax, third + 24
    movl $third, %eax
    orl $3, %eax
    movl %eax, fourth
    movl $0x83, %eax
    movl $low, %ecx
    movl $512, %edx
1:  movl %eax, (%ecx)
    addl $0x200000, %eax
    addl $8, %ecx
    decl %edx
    jnz 1b
    movl $0xC0000093, %eax
    movl $high, %ecx
    movl $512, %edx
1:  movl %eax, (%ecx)
    addl $0x200000, %eax
    addl $8, %ecx
    decl %edx
    jnz 1b
    movl $fourth, %eax
    movl %eax, %cr3
    movl %cr4, %eax
    orl $0x40620, %eax          /* PAE, OSFXSR, OSXMMEXCPT, OSXSAVE */
    movl %eax, %cr4
    movl $0xC0000080, %ecx
    rdmsr
    orl $0x100, %eax            /* long mode */
    wrmsr
    movl %cr0, %eax
    andl $~0x4, %eax            /* no emulation of the FPU */
    orl $0x80000003, %eax       /* paging, monitoring, protection */
    movl %eax, %cr0
    xorl %ecx, %ecx
    xorl %edx, %edx
    movl $7, %eax               /* x87, SSE, AVX */
    xsetbv
    lgdt gdtr
    ljmp $0x08, $2f
.code64
2:  movw $0x10, %ax
    movw %ax, %ds
    movw %ax, %es
    movw %ax, %ss
    call begin
3:  hlt
    jmp 3b
.section .rodata.gdt,"a"
.align 8
gdt: .quad 0, 0x00AF9A000000FFFF, 0x00CF92000000FFFF
gdtr: .word 23
    .long gdt
.section .tables,"aw",@nobits
.align 4096
fourth: .skip 4096
third: .skip 4096
low:   .skip 4096
high:  .skip 4096
"#,
    options(att_syntax)
);

/// COM1.
pub const UART: usize = 0x3f8;
/// Where QEMU's loader puts an image in memory.
pub const IMAGE: usize = 0x0400_0000;
/// Registers of the virtio devices: the first, the distance, how many.
pub const VIRTIO: (usize, usize, usize) = (0xfeb0_0000, 0x200, 24);
/// With `-icount shift=0` the counter counts instructions, and so nanoseconds. Without it counts
/// faster than that, by two or three, so that deadlines are sooner.
pub const CLOCK_HZ: u64 = 1_000_000_000;

/// Further cores are left asleep.
pub fn start(_core: usize) {}

/// What the standard library's `core` expects from a C library, which the target names but an image
/// does not have. Nothing else has these names, and each does what C says of it.
mod memory {
    use core::arch::asm;

    /// # Safety
    /// As in C.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, bytes: usize) -> *mut u8 {
        // SAFETY: promised by the caller.
        unsafe {
            asm!("rep movsb", inout("rcx") bytes => _, inout("rdi") to => _, inout("rsi") from => _,
                options(nostack, preserves_flags));
        }
        to
    }

    /// # Safety
    /// As in C.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn memset(to: *mut u8, byte: i32, bytes: usize) -> *mut u8 {
        // SAFETY: promised by the caller.
        unsafe {
            asm!("rep stosb", inout("rcx") bytes => _, inout("rdi") to => _, in("al") byte as u8,
                options(nostack, preserves_flags));
        }
        to
    }

    /// # Safety
    /// As in C.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, bytes: usize) -> *mut u8 {
        if to.addr().wrapping_sub(from.addr()) >= bytes {
            // SAFETY: going up, nothing is overwritten before it was read.
            return unsafe { memcpy(to, from, bytes) };
        }
        // SAFETY: promised by the caller; there is at least one byte here.
        unsafe {
            asm!("std", "rep movsb", "cld", inout("rcx") bytes => _,
                inout("rdi") to.add(bytes - 1) => _, inout("rsi") from.add(bytes - 1) => _,
                options(nostack));
        }
        to
    }

    /// # Safety
    /// As in C.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn memcmp(a: *const u8, b: *const u8, bytes: usize) -> i32 {
        for index in 0..bytes {
            // Volatile, so that the loop is not turned into a call of this function.
            // SAFETY: promised by the caller.
            let (a, b) = unsafe { (a.add(index).read_volatile(), b.add(index).read_volatile()) };
            if a != b {
                return i32::from(a) - i32::from(b);
            }
        }
        0
    }

    /// # Safety
    /// As in C.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn bcmp(a: *const u8, b: *const u8, bytes: usize) -> i32 {
        // SAFETY: promised by the caller.
        unsafe { memcmp(a, b, bytes) }
    }

    #[unsafe(no_mangle)]
    extern "C" fn rust_eh_personality() {}

    #[unsafe(no_mangle)]
    extern "C" fn _Unwind_Resume() -> ! {
        crate::fail()
    }
}
