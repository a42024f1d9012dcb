//! Pages of 4, 16 and 64 KiB: images packed for each, memory that is aligned to no more, and direct
//! reads of a file.

use std::fs;
use std::path::Path;

use firmware_tests::model::{REGION_BYTES, expected_in};
use firmware_tests::moved::aligned;
use firmware_tests::packed::austen;
use firmware_tests::shared::{Job, Machine, drain, run};
use tessera_hal::OneLane;
use tessera_hal::linux::{Choice, MonotonicClock, OpenOptions, Region, open};
use tessera_kernels::Kernels;
use tessera_runtime::Mode;
use tessera_runtime::format::{Image, SECTION_ALIGN_BYTES, SectionKind};

const PAGES: [usize; 3] = [4 << 10, 16 << 10, 64 << 10];

/// What the images print.
fn wanted() -> String {
    let path = firmware_tests::build::images().join("bin/austen.out");
    let text = fs::read_to_string(path).unwrap();
    text.strip_suffix("done\n").unwrap().to_owned()
}

/// Memory that begins at a multiple of `page`, and of no larger power of two.
fn just_aligned(memory: &mut [u8], page: usize) -> &mut [u8] {
    let even = memory.as_ptr().align_offset(2 * page);
    &mut memory[even + page..][..REGION_BYTES]
}

#[test]
fn images_for_every_page_size_give_the_same_bits() {
    let image = fs::read(austen()).unwrap();
    for page in PAGES {
        let image = aligned(&image, page as u64);
        let checked = Image::new_checked(&image, image.len() as u64).unwrap();
        for section in (0..checked.n_sections()).map(|index| checked.section(index)) {
            let kind = SectionKind::from_u16(section.kind);
            let least = kind.map_or(SECTION_ALIGN_BYTES, SectionKind::align_bytes);
            let align = least.max(page as u64);
            assert!(section.offset.is_multiple_of(align), "{page}: {section:?}");
        }
        let mut memory = vec![0; REGION_BYTES + 3 * page];
        let found = expected_in(&image, just_aligned(&mut memory, page));
        assert_eq!(found, wanted(), "pages of {page} bytes");
    }
}

#[test]
fn memory_that_begins_anywhere_is_enough() {
    let image = fs::read(austen()).unwrap();
    let mut memory = vec![0; REGION_BYTES + 1];
    assert_eq!(expected_in(&image, &mut memory[1..]), wanted());
}

/// Direct where the file system of this machine has it; if not, what is read is the same.
#[test]
fn files_for_every_page_size_give_the_same_bits() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for page in PAGES {
        let path = folder.path().join("austen.image");
        fs::write(&path, aligned(&fs::read(austen()).unwrap(), page as u64)).unwrap();
        for direct in [Choice::Auto, Choice::Never] {
            assert_eq!(
                from_file(&path, direct, page),
                wanted(),
                "{page} {direct:?}"
            );
        }
    }
}

fn from_file(path: &Path, direct: Choice, page: usize) -> String {
    let mut text = String::new();
    for mode in [Mode::Exact, Mode::Predict] {
        let options = OpenOptions {
            direct,
            ..OpenOptions::default()
        };
        let (mut flash, _) = open(path, &options).unwrap();
        let memory = Region::new(REGION_BYTES + 3 * page).unwrap().into_static();
        let machine = Machine {
            cores: &OneLane,
            clock: MonotonicClock,
            kernels: Kernels::best(),
        };
        let job = Job { mode, ffn_pct: 15 };
        let region = just_aligned(memory, page);
        run(&mut flash, region, &machine, job, &mut text).unwrap();
        drain(&mut flash);
    }
    text
}
