//! Wrapping and cutting text for a terminal.

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

/// The fewest columns left for the text beside an indentation.
const LEAST: usize = 20;

/// Breaks lines of more than `width` columns between words. A continuation is indented like the line's text: below its
/// last column, if two or more spaces separate columns. A word that is too long stays whole.
pub fn wrapped(text: &str, width: usize) -> String {
    text.split('\n').map(|line| wrapped_line(line, width)).collect::<Vec<_>>().join("\n")
}

fn wrapped_line(line: &str, width: usize) -> String {
    if line.width() <= width {
        return line.to_owned();
    }
    let indent = Some(indentation(line)).filter(|indent| indent + LEAST <= width).unwrap_or_default();
    let (start, rest) = line.split_at(line.char_indices().nth(indent).map_or(0, |(at, _)| at));
    let mut wrapped = start.to_owned();
    let mut column = indent;
    let mut is_first = true;
    for word in rest.split(' ') {
        let room = column + usize::from(!is_first) + word.width();
        if !is_first && room > width {
            wrapped.truncate(wrapped.trim_end().len());
            wrapped.push('\n');
            wrapped.push_str(&" ".repeat(indent));
            column = indent + word.width();
        } else {
            wrapped.push_str(if is_first { "" } else { " " });
            column = room;
        }
        wrapped.push_str(word);
        is_first = false;
    }
    wrapped
}

/// Returns the column in which the text of a line begins: after the first gap of two or more spaces that follows a
/// term, or after the line's own indentation.
fn indentation(line: &str) -> usize {
    let own = line.chars().take_while(|c| *c == ' ').count();
    if own == 0 {
        return 0;
    }
    let term = &line[own..];
    let Some(gap) = term.find("  ") else { return own };
    let text = term[gap..].trim_start();
    // A gap at the end of a sentence, as before a default, separates no columns.
    if text.starts_with('[') { own } else { line.chars().count() - text.chars().count() }
}

/// Returns the beginning of a line that fits into so many `columns`.
pub fn cut(line: &str, columns: usize) -> &str {
    let mut used = 0;
    let is_beyond = |(_, c): &(usize, char)| {
        used += c.width().unwrap_or(0);
        used > columns
    };
    let end = line.char_indices().find(is_beyond).map_or(line.len(), |(at, _)| at);
    &line[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_cut_by_columns() {
        for (line, fits) in
            [("short", "short"), ("too long", "too l"), ("夜間報告", "夜間"), ("a夜間報告", "a夜間"), ("", "")]
        {
            assert_eq!(cut(line, 5), fits);
        }
        assert_eq!(cut("line", 0), "");
    }

    #[test]
    fn text_is_wrapped_below_itself() {
        for (line, wanted) in [
            ("short", "short"),
            ("plain words without an indentation", "plain words without an\nindentation"),
            ("    indented words that are too many", "    indented words that are\n    too many"),
            ("  75  the lock is held, or the wait", "  75  the lock is held, or\n      the wait"),
            ("    no columns in it  [default: 5s, or 6]", "    no columns in it\n    [default: 5s, or 6]"),
            ("", ""),
            ("a_word_that_is_much_too_long_for_this and", "a_word_that_is_much_too_long_for_this\nand"),
        ] {
            assert_eq!(wrapped(line, 28), wanted);
        }
        assert_eq!(wrapped("a\n\nb", 24), "a\n\nb");
    }

    #[test]
    fn a_narrow_terminal_gets_no_columns() {
        let line = format!("  {}  and a meaning", "x".repeat(20));
        assert!(wrapped(&line, 24).lines().all(|line| line.trim().len() <= 24));
    }
}
