//! Rows of text into aligned columns; the first column to the left, figures to the right, the last (targets) to the left.

use std::fmt::Write as _;
use std::time::Duration;

pub(crate) struct Table {
    title: &'static str,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(title: &'static str, heads: &[&str]) -> Self {
        Table { title, rows: vec![heads.iter().map(|head| (*head).to_owned()).collect()] }
    }

    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
        let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
        writeln!(f, "{}\n", self.title)?;
        for (number, row) in self.rows.iter().enumerate() {
            let mut line = String::new();
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                if column == 0 || column + 1 == columns {
                    write!(line, "{cell:<width$}  ")?;
                } else {
                    write!(line, "{cell:>width$}  ")?;
                }
            }
            writeln!(f, "  {}", line.trim_end())?;
            if number == 0 {
                writeln!(f, "  {}", widths.iter().map(|width| "-".repeat(*width)).collect::<Vec<_>>().join("  "))?;
            }
        }
        writeln!(f)
    }
}

/// `12.34`, in milliseconds.
pub(crate) fn ms(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64() * 1000.0)
}

/// `4.02`, in seconds.
pub(crate) fn s(time: Duration) -> String {
    format!("{:.3}", time.as_secs_f64())
}

/// KiB as MiB.
pub(crate) fn mib(kib: i64) -> String {
    format!("{:.1}", kib as f64 / 1024.0)
}

/// `cpu <= 60 ms: met`, or by how much it is missed.
pub(crate) fn target(what: &str, found: f64, at_most: f64, unit: &str) -> String {
    let verdict = if found <= at_most {
        "met".to_owned()
    } else {
        format!("missed by {} {unit} ({:.0} %)", figure(found - at_most), (found / at_most - 1.0) * 100.0)
    };
    format!("{what} <= {} {unit}: {verdict}", figure(at_most))
}

fn figure(value: f64) -> String {
    if value >= 10.0 && value.fract() == 0.0 { format!("{value}") } else { format!("{value:.2}") }
}

/// The middle of the values; of an even number of them, the upper one.
pub(crate) fn median<T: Copy + PartialOrd>(values: impl IntoIterator<Item = T>) -> Option<T> {
    let mut values: Vec<T> = values.into_iter().collect();
    values.sort_by(|a, b| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_aligned() {
        let mut table = Table::new("times", &["program", "ms", "target"]);
        table.row(vec!["a".to_owned(), "1.0".to_owned(), target("cpu", 75.0, 60.0, "ms")]);
        table.row(vec!["longer".to_owned(), "10.0".to_owned(), String::new()]);
        let lines: Vec<String> = table.to_string().lines().map(str::to_owned).collect();
        assert_eq!(lines[4], "  a         1.0  cpu <= 60 ms: missed by 15 ms (25 %)");
        assert_eq!(lines[5], "  longer   10.0");
    }

    #[test]
    fn the_median_of_runs() {
        assert_eq!(median([5, 1, 9]), Some(5));
        assert_eq!(median([2.0, 1.0]), Some(2.0));
        assert_eq!(median(Vec::<u8>::new()), None);
    }
}
