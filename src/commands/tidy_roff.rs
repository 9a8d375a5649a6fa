//! Tidies the source of a manual page for mandoc's and groff's checks: short lines, no trailing spaces, no repeated
//! definitions, text that is aligned to the left.

/// The longest line of text, in bytes.
const LINE_MAX: usize = 80;

/// clap's renderer defines the apostrophe like this before each section; once is enough.
const DEFINITION: [&str; 2] = [r".ie \n(.g .ds Aq \(aq", ".el .ds Aq '"];

/// Aligns the text to the left: a URL leaves a line that cannot be stretched to the margin, of which groff warns.
const LEFT: &str = ".ad l\n";

/// Returns the tidied page.
pub fn tidied(roff: &str) -> String {
    let mut tidy = String::with_capacity(roff.len());
    // Text between `.nf` and `.fi` is printed as it is, line by line.
    let mut is_verbatim = false;
    for (number, line) in roff.lines().enumerate() {
        let line = line.trim_end();
        if number >= DEFINITION.len() && DEFINITION.contains(&line) {
            continue;
        }
        match line {
            ".nf" => is_verbatim = true,
            ".fi" => is_verbatim = false,
            _ => {}
        }
        let is_text = !line.starts_with('.') && !is_verbatim;
        tidy.push_str(&if is_text { broken(line) } else { line.to_owned() });
        tidy.push('\n');
        if line.starts_with(".TH ") {
            tidy.push_str(LEFT);
        }
    }
    tidy
}

/// Breaks a line of text at spaces into lines of at most [`LINE_MAX`] bytes. No new line begins with a character that
/// would make it a request.
fn broken(line: &str) -> String {
    let mut broken = String::with_capacity(line.len());
    let mut length = 0;
    for (number, word) in line.split(' ').enumerate() {
        let may_break = !word.starts_with(['.', '\'']) && !word.is_empty();
        if number > 0 && may_break && length + 1 + word.len() > LINE_MAX {
            broken.truncate(broken.trim_end().len());
            broken.push('\n');
            length = 0;
        } else if number > 0 {
            broken.push(' ');
            length += 1;
        }
        broken.push_str(word);
        length += word.len();
    }
    broken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_broken_between_words() {
        let line = format!("{} .b 'c ", "word ".repeat(40).trim_end());
        let tidy = tidied(&format!(".TH A 1 \n{line}\n.nf\n{line}\n.fi\n"));
        let lines: Vec<&str> = tidy.lines().collect();
        assert_eq!(lines[..2], [".TH A 1", ".ad l"]);
        assert!(
            lines[2..lines.len() - 3].iter().all(|line| line.len() <= LINE_MAX && line.starts_with("word")),
            "{tidy}"
        );
        assert_eq!(lines[2..lines.len() - 3].join(" "), line.trim_end());
        assert_eq!(lines[lines.len() - 2], line.trim_end());
    }

    #[test]
    fn the_apostrophe_is_defined_once() {
        let definition = DEFINITION.join("\n");
        assert_eq!(tidied(&format!("{definition}\nA\n{definition}\nB\n")), format!("{definition}\nA\nB\n"));
    }
}
