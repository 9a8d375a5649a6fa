//! Prints the manual, which is generated from the command line's definition.

use std::io::Write;

use anyhow::Result;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use super::tidy_roff;
use crate::cli::{self, Subcommand, examples, text};

/// Returns the named page: `man`, or the page of a subcommand.
pub fn generate(page: &str) -> Result<String> {
    let mut roff = Vec::new();
    match Subcommand::ALL.into_iter().find(|subcommand| subcommand.page() == page) {
        Some(subcommand) => page_of(subcommand, &mut roff)?,
        None => manual(&mut roff)?,
    }
    Ok(tidy_roff::tidied(&String::from_utf8(roff)?))
}

/// Writes the manual page.
fn manual(out: &mut impl Write) -> Result<()> {
    start(Man::new(cli::all()), "lockrun", out)?;
    let mut rest = Roff::new();
    rest.control("PP", []).text([roman(text::DURATIONS)]);
    rest.control("SH", ["OTHER COMMANDS"]).text([roman("Each has a manual page of its own.")]);
    for subcommand in Subcommand::ALL {
        let about = subcommand.definition().get_about().map(ToString::to_string).unwrap_or_default();
        rest.control("TP", []).text([bold(subcommand.page()), roman("(1)")]).text([roman(about)]);
    }
    exit_status(&mut rest, &text::EXIT_STATUS);
    rest.control("SH", ["ENVIRONMENT"]).text([roman(text::SETTINGS)]);
    rest.control("PP", []).text([roman("COMMAND finds in its environment:")]);
    table(&mut rest, &text::ENVIRONMENT);
    rest.control("SH", ["SIGNALS"]).text([roman(text::SIGNALS)]);
    rest.control("SH", ["FILES"]);
    table(&mut rest, &text::FILES);
    rest.control("PP", []).text([roman(text::FILE_FORMAT)]);
    rest.control("SH", ["EVENTS"]).text([roman(text::EVENT_FORMAT)]);
    table(&mut rest, &text::EVENTS);
    example_section(&mut rest, &examples::OF_A_RUN);
    let pages = Subcommand::ALL.map(|subcommand| format!("{}(1)", subcommand.page())).join(", ");
    rest.control("SH", ["SEE ALSO"]).text([roman(format!("{pages}, flock(1), crontab(5)"))]);
    rest.to_writer(out)?;
    Ok(())
}

/// Writes the manual page of a subcommand.
fn page_of(subcommand: Subcommand, out: &mut impl Write) -> Result<()> {
    start(Man::new(subcommand.definition()), subcommand.page(), out)?;
    let mut rest = Roff::new();
    rest.control("PP", []).text([roman(text::DURATIONS)]);
    exit_status(&mut rest, subcommand.exit_status());
    rest.control("SH", ["ENVIRONMENT"]).text([roman(subcommand.settings())]);
    example_section(&mut rest, examples::of(subcommand));
    rest.control("SH", ["SEE ALSO"]).text([roman("lockrun(1)")]);
    rest.to_writer(out)?;
    Ok(())
}

/// Writes the title and the sections that clap renders from a definition.
fn start(man: Man, page: &str, out: &mut impl Write) -> Result<()> {
    let version = concat!("lockrun ", env!("CARGO_PKG_VERSION"));
    let man = man.title(page.to_uppercase()).date(text::MANUAL_DATE).source(version).manual("User Commands");
    man.render_title(out)?;
    man.render_name_section(out)?;
    man.render_synopsis_section(out)?;
    man.render_description_section(out)?;
    man.render_options_section(out)?;
    Ok(())
}

fn exit_status(roff: &mut Roff, rows: &text::Table) {
    roff.control("SH", ["EXIT STATUS"]);
    table(roff, rows);
}

/// Adds examples, each below its description.
fn example_section(roff: &mut Roff, rows: &text::Table) {
    roff.control("SH", ["EXAMPLES"]);
    for (number, (command, meaning)) in rows.iter().enumerate() {
        if number > 0 {
            roff.control("PP", []);
        }
        roff.text([roman(format!("{meaning}:"))]).control("PP", []).control("RS", ["4"]).control("nf", []);
        roff.text([roman(*command)]).control("fi", []).control("RE", []);
    }
}

/// Adds a list of terms and their meanings.
fn table(roff: &mut Roff, rows: &text::Table) {
    for (term, meaning) in rows {
        roff.control("TP", []).text([roman(*term)]).text([roman(*meaning)]);
    }
}
