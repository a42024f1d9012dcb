//! Sandboxes that refuse io_uring or threads: by an error number, or by ending the process.
//!
//! Each case runs in a child process, which is this test program once more: it puts a filter on
//! itself and opens an image.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus};

use tessera_hal::linux::{Choice, LaneOptions, Lanes, OpenError, OpenOptions, Region, open};
use tessera_hal::{Cores, Flash, IoError, PAGE_BYTES, PageIndex, Read};

/// Names the case to the child.
const CASE: &str = "TESSERA_SECCOMP_CASE";

const URING_SETUP: [i64; 1] = [libc::SYS_io_uring_setup];
const URING_ENTER: [i64; 1] = [libc::SYS_io_uring_enter];
const URING_REGISTER: [i64; 1] = [libc::SYS_io_uring_register];
const THREADS: [i64; 2] = [libc::SYS_clone3, libc::SYS_clone];

/// Answers `calls` of this thread, and of threads it starts, with `action` from now on.
fn filter(calls: &[i64], action: u32) {
    let statement = |code: u32, k: u32| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    };
    let load_number = statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0);
    let mut program = vec![load_number];
    for &call in calls {
        let code = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
        program.push(libc::sock_filter {
            code,
            jt: 0,
            jf: 1,
            k: call as u32,
        });
        program.push(statement(libc::BPF_RET | libc::BPF_K, action));
    }
    program.push(statement(
        libc::BPF_RET | libc::BPF_K,
        libc::SECCOMP_RET_ALLOW,
    ));
    let filter = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: plain numbers; a process may always give up privileges.
    let status = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(status, 0, "no_new_privs");
    // SAFETY: `filter` points to a program of its length, and the kernel copies it.
    let status = unsafe {
        libc::prctl(
            libc::PR_SET_SECCOMP,
            libc::SECCOMP_MODE_FILTER,
            &raw const filter,
        )
    };
    assert_eq!(status, 0, "seccomp filter");
}

fn errno(number: i32) -> u32 {
    libc::SECCOMP_RET_ERRNO | number as u32
}

/// Reads the second page and checks it.
fn read_page(flash: &mut impl Flash<'static>) -> Result<(), IoError> {
    let buf = Region::new(PAGE_BYTES as usize)
        .expect("memory")
        .into_static();
    let bytes = buf.len();
    flash
        .submit(Read {
            start: PageIndex(1),
            buf,
            bytes,
            tag: 1,
        })
        .expect("accepted");
    assert!(flash.wait(30_000_000_000));
    let (read, result) = flash.reap().expect("finished");
    assert!(result.is_err() || read.buf.iter().all(|&byte| byte == 1));
    result
}

fn options(uring: Choice) -> OpenOptions {
    OpenOptions {
        uring,
        ..Default::default()
    }
}

/// The child's part.
fn run_case(case: &str, image: &Path) {
    match case {
        "setup-eperm" | "setup-enosys" | "enter-eperm" => {
            let (calls, number) = match case {
                "setup-eperm" => (URING_SETUP, libc::EPERM),
                "setup-enosys" => (URING_SETUP, libc::ENOSYS),
                _ => (URING_ENTER, libc::EPERM),
            };
            filter(&calls, errno(number));
            let (mut flash, report) = open(image, &options(Choice::Auto)).expect("opens");
            assert_eq!(report.uring_errno, Some(number), "{report}");
            assert!(report.io_path().starts_with("pread-"), "{report}");
            assert_eq!(read_page(&mut flash), Ok(()));
            let error = open(image, &options(Choice::Require)).unwrap_err();
            assert_eq!(error, OpenError::Uring { errno: number });
        }
        "register-eperm" => {
            filter(&URING_REGISTER, errno(libc::EPERM));
            let (mut flash, report) = open(image, &options(Choice::Auto)).expect("opens");
            assert!(!report.registered_buffers, "{report}");
            assert_eq!(read_page(&mut flash), Ok(()));
        }
        "kill-never" => {
            filter(&URING_SETUP, libc::SECCOMP_RET_KILL_PROCESS);
            let (mut flash, report) = open(image, &options(Choice::Never)).expect("opens");
            assert!(report.io_path().starts_with("pread-"), "{report}");
            assert_eq!(read_page(&mut flash), Ok(()));
        }
        "kill-require" => {
            filter(&URING_SETUP, libc::SECCOMP_RET_KILL_PROCESS);
            let _ = open(image, &options(Choice::Require));
        }
        "no-threads" => {
            filter(&THREADS, errno(libc::EAGAIN));
            let error = open(image, &options(Choice::Never)).unwrap_err();
            assert_eq!(
                error,
                OpenError::Threads {
                    errno: libc::EAGAIN
                }
            );
            let (lanes, report) = Lanes::new(&LaneOptions {
                lanes: 4,
                ..Default::default()
            });
            assert_eq!((report.lanes, report.asked), (1, 4));
            let mut items = [1; 5];
            lanes.for_each(&mut items, &|_, item| *item += 1);
            assert_eq!(items, [2; 5]);
        }
        "no-affinity" => {
            let calls = [libc::SYS_sched_setaffinity, libc::SYS_sched_getaffinity];
            filter(&calls, errno(libc::EPERM));
            let options = LaneOptions {
                lanes: 2,
                pin: true,
                ..Default::default()
            };
            let (lanes, report) = Lanes::new(&options);
            assert_eq!(lanes.lanes(), 2);
            assert!(
                report.to_string().contains("Operation not permitted"),
                "{report}"
            );
        }
        other => panic!("no case {other}"),
    }
}

#[test]
#[ignore = "the child's part; the other tests start it"]
fn child() {
    if let Ok(case) = std::env::var(CASE) {
        let (case, image) = case.split_once('=').expect("CASE=IMAGE");
        run_case(case, Path::new(image));
    }
}

fn start_child(case: &str) -> ExitStatus {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let pages = (0..4u8).flat_map(|page| [page; PAGE_BYTES as usize]);
    std::fs::write(&image, pages.collect::<Vec<u8>>()).unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "child",
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(CASE, format!("{case}={}", image.display()))
        .output()
        .unwrap();
    if !child.status.success() {
        eprintln!("{case}: {}", String::from_utf8_lossy(&child.stderr));
    }
    child.status
}

#[test]
fn a_sandbox_that_refuses_io_uring_gets_reader_threads() {
    for case in ["setup-eperm", "setup-enosys", "enter-eperm"] {
        assert!(start_child(case).success(), "{case}");
    }
}

#[test]
fn a_sandbox_that_refuses_registration_gets_plain_requests() {
    assert!(start_child("register-eperm").success());
}

#[test]
fn a_sandbox_that_kills_for_io_uring_is_never_provoked() {
    assert!(start_child("kill-never").success());
    // The filter works: whoever requires io_uring dies of it.
    assert_eq!(start_child("kill-require").signal(), Some(libc::SIGSYS));
}

#[test]
fn a_sandbox_without_threads_gets_an_error_or_one_lane() {
    assert!(start_child("no-threads").success());
}

#[test]
fn a_sandbox_without_affinity_gets_free_lanes() {
    assert!(start_child("no-affinity").success());
}
