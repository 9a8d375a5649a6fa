//! Checks that the tables of the documentation agree with the code.

mod options;
mod statuses;
mod urls;

/// The README.
pub(crate) const README: &str = include_str!("../../README.md");
/// Options, statuses, variables and files.
pub(crate) const REFERENCE: &str = include_str!("../../docs/reference.md");
/// The output for programs.
pub(crate) const JSON: &str = include_str!("../../docs/json.md");
/// The stores.
pub(crate) const STORES: &str = include_str!("../../docs/stores.md");

/// Returns the rows of the table in `page` whose heading begins with these cells.
pub(crate) fn table(page: &str, heading: &[&str]) -> Vec<Vec<String>> {
    let is_heading =
        |line: &&str| cells(line).starts_with(&heading.iter().map(|&cell| cell.to_owned()).collect::<Vec<_>>());
    let mut lines = page.lines().skip_while(|line| !is_heading(line)).skip(2);
    let rows: Vec<_> = lines.by_ref().take_while(|line| line.starts_with('|')).map(cells).collect();
    assert!(!rows.is_empty(), "there is no table {heading:?}");
    rows
}

/// Returns the cells of a table's line.
fn cells(line: &str) -> Vec<String> {
    let Some(inner) = line.strip_prefix('|').and_then(|line| line.trim_end().strip_suffix('|')) else {
        return Vec::new();
    };
    inner.replace("\\|", "\0").split('|').map(|cell| cell.trim().replace('\0', "|")).collect()
}

/// Returns the text in backticks.
pub(crate) fn code(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// Returns a cell without its backticks.
fn plain(cell: &str) -> String {
    cell.replace('`', "")
}
