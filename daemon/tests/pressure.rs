//! Memory that is given back on a real system is not resident, and tokens stay the same.

#[path = "../../runtime/tests/support/mod.rs"]
mod support;

use std::cell::Cell;
use std::rc::Rc;

use support::{Predictors, Recipe, tiny_image};
use tessera::engine::{EngineOptions, LinuxSession, OpenImage, start};
use tessera::planning::{Device, make_plan};
use tessera::pressure::Yielding;
use tessera_hal::linux::DontNeed;
use tessera_kernels::Activation;
use tessera_runtime::Mode;
use tessera_runtime::digest::Digest;
use tessera_runtime::planner::ColdWish;

#[test]
fn a_cache_that_gives_way_changes_no_logit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.image");
    let recipe = Recipe {
        activation: Activation::Relu,
        bundle_neurons: 1,
        predictors: Predictors::Some,
        ..Recipe::default()
    };
    std::fs::write(&path, tiny_image(&recipe)).unwrap();
    let model = OpenImage::open(&path).unwrap();
    let mut options = EngineOptions {
        context: Some(64),
        lanes: Some(2),
        logits_rows: 1,
        mode: Mode::Predict,
        batch_tokens: Some(8),
        memory_bytes: Some(1 << 30),
        cold: ColdWish {
            hot_pct: Some(0),
            ..ColdWish::default()
        },
        ..EngineOptions::default()
    };
    let device = Device::find(None).unwrap();
    let plan = make_plan(&model, &options, &device, 2).unwrap().plan;
    options.memory_bytes = Some(1);
    let refused = make_plan(&model, &options, &device, 2).err().unwrap();
    let numbers = refused.to_string();
    let numbers = numbers
        .split(' ')
        .filter_map(|word| word.parse::<u64>().ok());
    let least = numbers.max().unwrap();
    let mut session_with = |more_bytes: u64| {
        options.memory_bytes = Some(least + more_bytes);
        let (mut session, _) = start(&model, &options).unwrap();
        session.load(&mut |_, _| {}).unwrap();
        session
    };
    let large = come_and_go(&mut session_with(plan.kept_bytes / 4 * 3));
    // The smallest cache with a page to spare: less than a page is an eighth of that.
    let mut sessions = (1..100).map(|pages| session_with(pages << 12));
    let small = sessions.find(|session| session.spare_bytes(&DontNeed) > 0);
    let small = come_and_go(&mut small.unwrap());
    assert_eq!([large, small], [[large[0]; 3]; 2]);
}

/// Digests before memory is short, meanwhile, and while it is taken again.
fn come_and_go(session: &mut LinuxSession) -> [u64; 3] {
    let short = Rc::new(Cell::new(false));
    let asked = short.clone();
    let mut yielding = Yielding::new(Box::new(move || asked.get())).calm_after(0);
    let decode = |session: &mut LinuxSession, yielding: &mut Yielding| {
        session.truncate(0);
        let mut digest = Digest::default();
        for token in 0..60 {
            yielding.look(session).unwrap();
            digest.add(session.append(&[token]).unwrap());
        }
        digest.value()
    };
    let calm = decode(session, &mut yielding);
    let whole = session.spare_bytes(&DontNeed);
    assert!(whole > 0);
    assert_eq!(yielding.given_bytes(), (0, 0));
    short.set(true);
    let meanwhile = decode(session, &mut yielding);
    // A part each time that memory was short, until nothing was left.
    assert_eq!(session.spare_bytes(&DontNeed), 0);
    assert_eq!(yielding.given_bytes(), (whole, whole));
    short.set(false);
    let afterwards = decode(session, &mut yielding);
    assert_eq!(yielding.given_bytes(), (0, whole));
    assert_eq!(session.spare_bytes(&DontNeed), whole);
    [calm, meanwhile, afterwards]
}
