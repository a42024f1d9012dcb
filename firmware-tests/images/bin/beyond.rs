//! The small model from an image whose back part lies beyond 5 GiB, where 32 bits would wrap.
#![no_std]
#![no_main]

use images::machine::{Console, clock, loaded, region};
use images::model::{Job, Machine, run};
use tessera_hal::bare::MemoryFlash;
use tessera_hal::{Flash, IoError, OneLane, PAGE_BYTES, PageIndex, Read};
use tessera_kernels::Kernels;
use tessera_runtime::Mode;
use tessera_runtime::format::{Image, SUPERBLOCK_BYTES, Superblock};

images::image!(go);

/// As `GAP_BYTES` of the package that makes the image.
const GAP_BYTES: u64 = 5 << 30;
const GAP_PAGES: u32 = (GAP_BYTES / PAGE_BYTES) as u32;

/// Flash with a gap before `cut` (a page of the flash inside) that nothing is ever read of.
struct Gapped {
    inside: MemoryFlash<'static, 'static>,
    cut: u32,
}

impl Flash<'static> for Gapped {
    fn size_bytes(&self) -> u64 {
        self.inside.size_bytes() + GAP_BYTES
    }

    fn align_bytes(&self) -> usize {
        self.inside.align_bytes()
    }

    fn depth(&self) -> usize {
        self.inside.depth()
    }

    fn submit(&mut self, mut read: Read<'static>) -> Result<(), (IoError, Read<'static>)> {
        if let Some(start) = read.start.0.checked_sub(GAP_PAGES)
            && start >= self.cut
        {
            read.start = PageIndex(start);
        } else {
            let end = u64::from(read.start.0) * PAGE_BYTES + read.bytes as u64;
            let inside = end <= u64::from(self.cut) * PAGE_BYTES;
            assert!(inside, "{} is read, in the gap", read.start.0);
        }
        self.inside.submit(read)
    }

    fn flush(&mut self) {}

    fn reap(&mut self) -> Option<(Read<'static>, Result<(), IoError>)> {
        self.inside.reap()
    }

    fn wait(&mut self, timeout_ns: u64) -> bool {
        self.inside.wait(timeout_ns)
    }
}

fn go() {
    // SAFETY: every machine has memory there, and the image's superblock says how much was loaded.
    let (bytes, cut) = unsafe {
        let Ok(superblock) = Superblock::parse(loaded(SUPERBLOCK_BYTES), u64::MAX) else {
            panic!("no image was loaded");
        };
        let bytes = loaded((superblock.image_bytes - GAP_BYTES) as usize);
        let Ok(image) = Image::new_checked(bytes, superblock.image_bytes) else {
            panic!("the image is not accepted");
        };
        (bytes, image.ffn(0, 0).offset)
    };
    assert!(cut > GAP_BYTES, "nothing was moved");
    let mut flash = Gapped {
        inside: MemoryFlash::new(bytes),
        cut: ((cut - GAP_BYTES) / PAGE_BYTES) as u32,
    };
    let machine = Machine {
        cores: &OneLane,
        clock: clock(),
        kernels: Kernels::best(),
    };
    for mode in [Mode::Exact, Mode::Predict] {
        // SAFETY: the one before is over, and nothing is being read.
        let region = unsafe { region() };
        let job = Job { mode, ffn_pct: 15 };
        if let Err(failure) = run(&mut flash, region, &machine, job, &mut Console) {
            panic!("{}: {failure}", mode.name());
        }
    }
}
