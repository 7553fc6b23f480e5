//! Times as people read them.

/// Milliseconds since 1970 as a date and time of day, in UTC.
pub fn moment(milliseconds: i64) -> String {
    let minutes = milliseconds.div_euclid(60_000);
    let (days, minute) = (minutes.div_euclid(1440), minutes.rem_euclid(1440));
    // Howard Hinnant's civil_from_days: years of the era begin in March.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = year_of_era + era * 400 + carry;
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}", minute / 60, minute % 60)
}

/// The same to the millisecond.
pub fn exact_moment(milliseconds: i64) -> String {
    let in_minute = milliseconds.rem_euclid(60_000);
    format!("{}:{:02}.{:03}", moment(milliseconds), in_minute / 1000, in_minute % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_dates_and_times_of_day() {
        assert_eq!(moment(0), "1970-01-01 00:00");
        assert_eq!(moment(951_782_400_000), "2000-02-29 00:00");
        assert_eq!(moment(1_767_225_599_000), "2025-12-31 23:59");
        assert_eq!(exact_moment(951_782_461_007), "2000-02-29 00:01:01.007");
        assert_eq!(moment(-60_000), "1969-12-31 23:59");
    }
}
