//! The story of each program: argv, environment and settings in, effects and an exit status out.

mod admin;
mod args;
mod begin;
mod beside;
mod claiming;
mod commit;
mod context;
mod decision;
mod ending;
mod exit;
mod fallback;
mod launching;
mod ordering;
mod preview;
mod publishing;
mod rebuild;
mod recovery;
mod release;
mod requeue;
mod resume;
mod resume_fail;
mod run;
mod startup;
mod survey;
mod suspend;
mod telling;
mod timed_out;
mod unmapped;
mod unusable;

pub use admin::main as admin_main;
pub use resume::main as resume_main;
pub use resume_fail::main as resume_fail_main;
pub use suspend::main as suspend_main;
