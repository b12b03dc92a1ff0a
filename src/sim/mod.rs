//! sim
pub mod args { use std::{error::Error, process::ExitCode}; #[derive(Debug, clap::Args)] pub struct EngineArgs {} pub fn run(_: &EngineArgs) -> Result<ExitCode, Box<dyn Error>> { Ok(ExitCode::SUCCESS) } }
pub mod demo { use std::{error::Error, process::ExitCode}; #[derive(Debug, clap::Args)] pub struct DemoArgs {} pub fn run(_: &DemoArgs) -> Result<ExitCode, Box<dyn Error>> { Ok(ExitCode::SUCCESS) } }
