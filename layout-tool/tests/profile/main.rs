//! Small models profiled: moved bytes, counted activity, continued runs.

#[path = "../../../runtime/tests/support/launch.rs"]
mod launch;
#[allow(dead_code, reason = "shared with the tests of packing")]
#[path = "../pack/model.rs"]
mod model;
mod run;

mod command;
mod moved;
mod recount;
mod resume;
