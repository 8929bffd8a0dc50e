//! strftime of Python on Linux.

use std::cell::Cell;

/// The time as the caller has it, in its own zone.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct HftNow {
    unix: i64,
    year: i32,
    month: i32,
    day: i32,
    hour: i32,
    minute: i32,
    second: i32,
    micro: i32,
    weekday: i32, // 0 is Sunday
    yearday: i32, // 1 is the first of January
    iso_year: i32,
    iso_week: i32,
}

thread_local! {
    /// The time of the rendering that runs on this thread.
    pub(crate) static NOW: Cell<HftNow> = Cell::new(HftNow::default());
}

pub(crate) const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
pub(crate) const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// datetime.now().strftime(format) of Python on Linux, in the C locale. now() has no zone, so that %z and
/// %Z are empty; a directive that is not known stays as it is.
pub(crate) fn strftime(format: &str, t: &HftNow) -> String {
    let day = DAYS[t.weekday.rem_euclid(7) as usize];
    let month = MONTHS[(t.month - 1).rem_euclid(12) as usize];
    let hour12 = if t.hour % 12 == 0 { 12 } else { t.hour % 12 };
    let monday = (t.weekday + 6) % 7; // 0 is Monday
    let mut out = String::new();
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        let body = &rest[at + 1..];
        let flags = body.len() - body.trim_start_matches(['-', '_', '0', '^', '#']).len();
        let Some(directive) = body[flags..].chars().next() else {
            out.push_str(&rest[at..]);
            return out;
        };
        let end = at + 1 + flags + directive.len_utf8();
        let mut pad = None;
        let mut upper = false;
        for flag in body[..flags].chars() {
            match flag {
                '^' | '#' => upper = true,
                flag => pad = Some(flag),
            }
        }
        let number = |n: i64, width: usize, default: char| match pad.unwrap_or(default) {
            '-' => n.to_string(),
            '_' => format!("{n:>width$}"),
            _ => format!("{n:0>width$}"),
        };
        let text = match directive {
            'a' => day[..3].to_string(),
            'A' => day.to_string(),
            'b' | 'h' => month[..3].to_string(),
            'B' => month.to_string(),
            'c' => strftime("%a %b %e %H:%M:%S %Y", t),
            'C' => number((t.year / 100).into(), 2, '0'),
            'd' => number(t.day.into(), 2, '0'),
            'D' | 'x' => strftime("%m/%d/%y", t),
            'e' => number(t.day.into(), 2, '_'),
            'f' => format!("{:06}", t.micro),
            'F' => strftime("%Y-%m-%d", t),
            'g' => number((t.iso_year % 100).into(), 2, '0'),
            'G' => t.iso_year.to_string(),
            'H' => number(t.hour.into(), 2, '0'),
            'I' => number(hour12.into(), 2, '0'),
            'j' => number(t.yearday.into(), 3, '0'),
            'k' => number(t.hour.into(), 2, '_'),
            'l' => number(hour12.into(), 2, '_'),
            'm' => number(t.month.into(), 2, '0'),
            'M' => number(t.minute.into(), 2, '0'),
            'n' => "\n".to_string(),
            'p' => if t.hour < 12 { "AM" } else { "PM" }.to_string(),
            'P' => if t.hour < 12 { "am" } else { "pm" }.to_string(),
            'r' => strftime("%I:%M:%S %p", t),
            'R' => strftime("%H:%M", t),
            's' => t.unix.to_string(),
            'S' => number(t.second.into(), 2, '0'),
            't' => "\t".to_string(),
            'T' | 'X' => strftime("%H:%M:%S", t),
            'u' => (monday + 1).to_string(),
            'U' => number(((t.yearday + 6 - t.weekday) / 7).into(), 2, '0'),
            'V' => number(t.iso_week.into(), 2, '0'),
            'w' => t.weekday.to_string(),
            'W' => number(((t.yearday + 6 - monday) / 7).into(), 2, '0'),
            'y' => number((t.year % 100).into(), 2, '0'),
            'Y' => t.year.to_string(),
            'z' | 'Z' => String::new(),
            '%' => "%".to_string(),
            _ => rest[at..end].to_string(),
        };
        if upper {
            out.push_str(&text.to_uppercase())
        } else {
            out.push_str(&text)
        }
        rest = &rest[end..];
    }
    out.push_str(rest);
    out
}
