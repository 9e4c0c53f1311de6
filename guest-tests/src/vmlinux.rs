//! Unpacks the kernel ELF out of a compressed x86 boot image.
//!
//! The ELF carries a PVH note, so QEMU starts it directly: the guest is up in about half the time, because nothing is
//! decompressed by emulated instructions.
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// A kernel ELF is about 60 MB; a stream that unpacks to more than this is damaged.
const MAX_KERNEL: u64 = 512 << 20;

/// The bootable ELF for `image`: `image` itself if it is one, or `vmlinux` unpacked into `into`, made on first use.
///
/// # Errors
/// A file that is neither an ELF nor a Linux boot image.
pub fn bootable(image: &Path, into: &Path) -> Result<PathBuf> {
    let data =
        fs::read(image).with_context(|| format!("cannot read the kernel {}", image.display()))?;
    if data.starts_with(b"\x7fELF") {
        return Ok(image.to_path_buf());
    }
    let out = into.join("vmlinux");
    let newer = |a: &Path, b: &Path| {
        Some(fs::metadata(a).ok()?.modified().ok()? >= fs::metadata(b).ok()?.modified().ok()?)
    };
    if newer(&out, image) == Some(true) {
        return Ok(out);
    }
    let Some(elf) =
        extract(&data).with_context(|| format!("cannot unpack the kernel {}", image.display()))?
    else {
        return Ok(image.to_path_buf());
    };
    fs::create_dir_all(into)?;
    let mut file = tempfile::NamedTempFile::new_in(into)?;
    std::io::Write::write_all(&mut file, &elf)?;
    file.persist(&out)?;
    Ok(out)
}

/// Unpacks a boot image. `None`: compressed in a way not handled here; QEMU can still boot the image itself.
///
/// # Errors
/// Not a Linux boot image, or a damaged one.
pub fn extract(image: &[u8]) -> Result<Option<Vec<u8>>> {
    let payload = payload(image)?;
    let mut elf = Vec::new();
    match payload {
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => {
            lzma_rust2::XzReader::new(payload, false)
                .take(MAX_KERNEL)
                .read_to_end(&mut elf)?;
        }
        [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            let decoder = ruzstd::decoding::StreamingDecoder::new(payload)
                .map_err(|e| anyhow::anyhow!("{e}"))?;
            decoder.take(MAX_KERNEL).read_to_end(&mut elf)?;
        }
        _ => return Ok(None),
    }
    if !elf.starts_with(b"\x7fELF") {
        bail!("what it holds is not an ELF file");
    }
    Ok(Some(elf))
}

/// The compressed payload, found by the x86 boot protocol: `setup_sects` at 0x1f1, "`HdrS`" at 0x202, `payload_offset`
/// and `payload_length` at 0x248 (kernel documentation, x86/boot).
fn payload(image: &[u8]) -> Result<&[u8]> {
    let word = |at: usize| -> Option<usize> {
        let bytes = image.get(at..at + 4)?.try_into().ok()?;
        usize::try_from(u32::from_le_bytes(bytes)).ok()
    };
    if image.get(0x202..0x206) != Some(b"HdrS") {
        bail!("it is neither an ELF vmlinux nor a Linux bzImage");
    }
    let sectors = match image[0x1f1] {
        0 => 4,
        n => usize::from(n),
    };
    let start = word(0x248).and_then(|o| o.checked_add((sectors + 1) * 512));
    let range = start
        .zip(word(0x24c))
        .and_then(|(start, len)| Some(start..start.checked_add(len)?));
    range
        .and_then(|range| image.get(range))
        .context("its payload lies outside the file")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(payload_offset: u32, payload_len: u32, payload: &[u8]) -> Vec<u8> {
        let mut image = vec![0; 1024];
        image[0x1f1] = 1;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x248..0x24c].copy_from_slice(&payload_offset.to_le_bytes());
        image[0x24c..0x250].copy_from_slice(&payload_len.to_le_bytes());
        image.extend_from_slice(payload);
        image
    }

    #[test]
    fn payload_is_found_by_the_boot_header() {
        assert_eq!(payload(&image(2, 3, b"..abc..")).unwrap(), b"abc");
    }

    #[test]
    fn wrong_or_damaged_images_are_refused() {
        assert!(
            extract(b"#!/bin/sh")
                .unwrap_err()
                .to_string()
                .contains("neither")
        );
        assert!(
            extract(&image(2, 30, b"..abc.."))
                .unwrap_err()
                .to_string()
                .contains("outside")
        );
        assert!(extract(&image(u32::MAX, u32::MAX, b"")).is_err());
        assert!(extract(&image(0, 6, b"\xfd7zXZ\0")).is_err());
    }

    #[test]
    fn unknown_compression_is_left_to_the_guest() {
        assert!(
            extract(&image(0, 4, b"\x02\x21\x4c\x18"))
                .unwrap()
                .is_none()
        );
    }
}
