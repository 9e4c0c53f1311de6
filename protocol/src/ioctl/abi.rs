//! How requests are encoded and structs described, so that numbers, layouts and the generated C header come from one
//! declaration.

/// Direction bits of a request, as Linux encodes them. From the caller's view: `Write` passes data in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// No argument.
    None,
    /// `_IOW`.
    Write,
    /// `_IOR`.
    Read,
    /// `_IOWR`.
    ReadWrite,
}

/// Where the argument's data really goes; the encoded direction is often wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// The argument is not looked at.
    Unused,
    /// The driver reads the struct.
    In,
    /// The driver fills the struct.
    Out,
    /// The driver reads the struct and writes it back.
    InOut,
    /// The driver reads the struct and writes results through pointers in it.
    InPointers,
}

/// Encodes a request (Linux asm-generic: 8 bits number, 8 magic, 14 size, 2 direction).
///
/// # Panics
/// `size` does not fit its 14 bits; in a constant that is a compile error.
pub const fn encode(direction: Direction, number: u8, size: usize) -> u32 {
    assert!(size < 1 << 14, "the encoding has 14 bits for the size");
    let direction: u32 = match direction {
        Direction::None => 0,
        Direction::Write => 1,
        Direction::Read => 2,
        Direction::ReadWrite => 3,
    };
    #[expect(clippy::cast_possible_truncation, reason = "below 2^14, checked above")]
    let size = size as u32;
    let (magic, number) = (super::MAGIC as u32, number as u32);
    direction << 30 | size << 16 | magic << 8 | number
}

/// One request.
#[derive(Clone, Copy, Debug)]
pub struct Ioctl {
    /// Name without prefix, for example `MEM_ALLOC`.
    pub name: &'static str,
    /// The full encoded value.
    pub request: u32,
    /// Direction bits in [`Self::request`].
    pub encoded: Direction,
    /// Where the data goes.
    pub flow: Flow,
    /// The argument struct, `None` when there is none.
    pub argument: Option<&'static StructLayout>,
}

impl Ioctl {
    /// The number, bits 7:0.
    pub const fn number(&self) -> u8 {
        self.request.to_le_bytes()[0]
    }
}

/// A struct that crosses the boundary.
pub trait Layout {
    /// Its description.
    const LAYOUT: StructLayout;
}

/// Description of a struct.
#[derive(Clone, Copy, Debug)]
pub struct StructLayout {
    /// C name without prefix, for example `mem_alloc`.
    pub name: &'static str,
    /// Size, bytes.
    pub size: usize,
    /// Its fields in order, padding included (named `pad_` and up).
    pub fields: &'static [Field],
}

/// Description of a field.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Name, the same in Rust and C.
    pub name: &'static str,
    /// Offset, bytes.
    pub offset: usize,
    /// Size, bytes.
    pub size: usize,
    /// Its type in C.
    pub ctype: CTypeRef,
}

/// A C type as text: `base` for a scalar, `base name[count]` for an array.
#[derive(Clone, Copy, Debug)]
pub struct CTypeRef {
    /// For example `__u32`, or the name of another layout when [`Self::is_struct`].
    pub base: &'static str,
    /// `base` names a [`StructLayout`].
    pub is_struct: bool,
    /// Array length.
    pub count: Option<usize>,
}

/// Maps a Rust type to its C type.
pub trait CType {
    /// The C type.
    const C: CTypeRef;
}

macro_rules! scalars {
    ($($rust:ty => $c:literal),*) => {$(
        impl CType for $rust {
            const C: CTypeRef = CTypeRef { base: $c, is_struct: false, count: None };
        }
    )*};
}
scalars!(u8 => "__u8", u16 => "__u16", u32 => "__u32", u64 => "__u64", i32 => "__s32", i64 => "__s64");

impl<T: CType, const N: usize> CType for [T; N] {
    const C: CTypeRef = CTypeRef {
        count: Some(N),
        ..T::C
    };
}

/// Declares argument structs. Padding is spelt out (`pad_` and up), so that no byte is undefined.
macro_rules! structs {
    ($(
        $(#[$meta:meta])*
        $name:ident = $c:literal { $( $(#[$field_meta:meta])* $field:ident: $ty:ty, )* }
    )*) => {
        $(
            $(#[$meta])*
            #[derive(Clone, Copy, Debug, zerocopy::FromBytes, zerocopy::Immutable, zerocopy::IntoBytes, zerocopy::KnownLayout)]
            #[repr(C)]
            pub struct $name {
                $( $(#[$field_meta])* pub $field: $ty, )*
            }

            impl Default for $name {
                /// All zeros.
                fn default() -> Self {
                    zerocopy::FromZeros::new_zeroed()
                }
            }

            impl $crate::ioctl::Layout for $name {
                const LAYOUT: $crate::ioctl::StructLayout = $crate::ioctl::StructLayout {
                    name: $c,
                    size: size_of::<Self>(),
                    fields: &[$(
                        $crate::ioctl::Field {
                            name: stringify!($field),
                            offset: core::mem::offset_of!(Self, $field),
                            size: size_of::<$ty>(),
                            ctype: <$ty as $crate::ioctl::CType>::C,
                        },
                    )*],
                };
            }

            impl $crate::ioctl::CType for $name {
                const C: $crate::ioctl::CTypeRef =
                    $crate::ioctl::CTypeRef { base: $c, is_struct: true, count: None };
            }
        )*

        pub(super) const LAYOUTS: &[&$crate::ioctl::StructLayout] =
            &[$( &<$name as $crate::ioctl::Layout>::LAYOUT, )*];
    };
}
pub(super) use structs;

/// Declares requests: `NAME = value, encoded direction, number, encoded size, flow, argument`. `p8` is the size of a
/// pointer, `real` that of the argument. The value is written out and checked against its parts at compile time.
macro_rules! ioctls {
    (@size p8, $($argument:ty)?) => { 8 };
    (@size real, $argument:ty) => { size_of::<$argument>() };
    (@size none, ) => { 0 };
    (@size $size:literal, $($argument:ty)?) => { $size };
    (@layout) => { None };
    (@layout $argument:ty) => { Some(&<$argument as $crate::ioctl::Layout>::LAYOUT) };
    ($(
        $(#[$meta:meta])*
        $name:ident = $value:literal, $encoded:ident, $number:literal, $size:tt, $flow:ident $(, $argument:ty)?;
    )*) => {
        $(
            $(#[$meta])*
            pub const $name: u32 = $value;
            const _: () = assert!($value == $crate::ioctl::encode(
                $crate::ioctl::Direction::$encoded,
                $number,
                $crate::ioctl::abi::ioctls!(@size $size, $($argument)?),
            ));
        )*

        pub(super) const IOCTLS: &[$crate::ioctl::Ioctl] = &[$(
            $crate::ioctl::Ioctl {
                name: stringify!($name),
                request: $name,
                encoded: $crate::ioctl::Direction::$encoded,
                flow: $crate::ioctl::Flow::$flow,
                argument: $crate::ioctl::abi::ioctls!(@layout $($argument)?),
            },
        )*];
    };
}
pub(super) use ioctls;
