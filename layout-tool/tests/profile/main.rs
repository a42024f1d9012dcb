//! Small models profiled: moved bytes, counted activity, continued runs.

#[allow(dead_code, reason = "shared with the tests of packing")]
#[path = "../pack/model.rs"]
mod model;
mod run;

mod command;
mod moved;
mod recount;
mod resume;
