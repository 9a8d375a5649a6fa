//! Prints the files that are generated from the command line's definition: the manual and the completions.

use std::io::Write;

use anyhow::Result;
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use crate::cli;

/// Writes the named file to `out`: `man`, `bash`, `zsh` or `fish`. Fails if `out` does.
pub fn generate(what: &str, out: &mut impl Write) -> Result<()> {
    let shell = match what {
        "bash" => Shell::Bash,
        "zsh" => Shell::Zsh,
        "fish" => Shell::Fish,
        _ => return manual(out),
    };
    clap_complete::generate(shell, &mut cli::documented(), "lockrun", out);
    Ok(())
}

/// Writes the manual page.
fn manual(out: &mut impl Write) -> Result<()> {
    let man = Man::new(cli::documented());
    man.render_title(out)?;
    man.render_name_section(out)?;
    man.render_synopsis_section(out)?;
    man.render_description_section(out)?;
    man.render_options_section(out)?;
    let mut rest = Roff::new();
    rest.control("PP", []).text([roman(cli::DURATIONS)]);
    rest.control("SH", ["EXIT STATUS"]);
    table(&mut rest, &cli::EXIT_STATUS);
    rest.control("SH", ["ENVIRONMENT"]).text([roman(cli::VARIABLES)]);
    rest.control("PP", []).text([roman("COMMAND finds in its environment:")]);
    table(&mut rest, &cli::ENVIRONMENT);
    rest.control("SH", ["SEE ALSO"]).text([roman("flock(1), crontab(5)")]);
    rest.to_writer(out)?;
    Ok(())
}

/// A list of terms with their meanings.
fn table(roff: &mut Roff, rows: &[(&str, &str)]) {
    for (term, meaning) in rows {
        roff.control("TP", []).text([roman(*term)]).text([roman(*meaning)]);
    }
}
