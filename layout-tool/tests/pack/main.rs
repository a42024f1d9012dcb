//! Small models packed, read back with the runtime's own views, damaged and compared.

mod command;
mod damage;
mod document;
mod golden;
#[path = "../../../runtime/tests/support/launch.rs"]
mod launch;
mod model;
mod refusals;
mod types;
mod weights;
