//! Sizes as people write them.

/// Parses `4G`, `512MiB`, `65536`: binary units, case ignored, an optional `B` or `iB` after the unit.
///
/// # Errors
/// Anything else, with what was expected.
pub fn parse(text: &str) -> Result<u64, String> {
    let expected = || {
        format!("'{text}' is not a size: write a whole number and K, M, G or T, such as 4G or 512M")
    };
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| expected())?;
    let shift = match unit.trim_start().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(expected()),
    };
    number
        .checked_mul(1 << shift)
        .ok_or_else(|| format!("'{text}' does not fit in 64 bits"))
}

/// Bytes as `parse` reads them, exact: the largest unit that divides them.
pub fn exact(bytes: u64) -> String {
    for (unit, shift) in [("T", 40), ("G", 30), ("M", 20), ("K", 10)] {
        if bytes != 0 && bytes.trailing_zeros() >= shift {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_what_people_write() {
        for (text, bytes) in [
            ("65536", 65536),
            ("4G", 4 << 30),
            ("512MiB", 512 << 20),
            ("1 gb", 1 << 30),
            ("2t", 2 << 40),
            ("0", 0),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn refuses_the_rest_and_says_what_is_wanted() {
        for text in [
            "",
            "G",
            "-1G",
            "1.5G",
            "4X",
            "0x1000",
            "4G!",
            "99999999999999999999",
        ] {
            assert!(parse(text).unwrap_err().contains("not a size"), "{text}");
        }
        assert!(parse("17179869184G").unwrap_err().contains("64 bits"));
    }

    #[test]
    fn exact_reads_back() {
        for bytes in [0, 1, 1024, 3 << 29, 1 << 38, u64::MAX] {
            assert_eq!(parse(&exact(bytes)), Ok(bytes));
        }
    }
}
