//! Instructions of BPF (RFC 9669), with labels in place of distances.

/// A program that is being written.
#[derive(Debug, Default)]
pub(crate) struct Assembler {
    code: Vec<Instruction>,
    /// Where each label is, once that is known.
    labels: Vec<Option<usize>>,
    /// Instructions that jump, and where to.
    jumps: Vec<(usize, Label)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Instruction {
    code: u8,
    to: Register,
    from: Register,
    offset: i16,
    immediate: i32,
}

/// A place in a program that jumps lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Label(usize);

/// One of the registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Register(u8);

/// The return value of a program and of a helper.
pub(crate) const R0: Register = Register(0);
/// The arguments of a program and of helpers, which overwrite them.
pub(crate) const R1: Register = Register(1);
pub(crate) const R2: Register = Register(2);
pub(crate) const R3: Register = Register(3);
/// Registers that helpers preserve.
pub(crate) const R6: Register = Register(6);
pub(crate) const R7: Register = Register(7);
pub(crate) const R8: Register = Register(8);
/// The end of the stack; its content lies before.
pub(crate) const R10: Register = Register(10);

/// How wide a memory access is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Width {
    W8 = 0x10,
    W16 = 0x08,
    W32 = 0x00,
    W64 = 0x18,
}

/// An operation on a register, in 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Operation {
    Add = 0x00,
    Multiply = 0x20,
    And = 0x50,
    ShiftLeft = 0x60,
    ShiftRight = 0x70,
    ShiftRightSigned = 0xc0,
    Set = 0xb0,
}

/// When a jump is taken, by 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum When {
    Equal = 0x10,
    NotEqual = 0x50,
    Above = 0x20,
    Below = 0xa0,
    AboveSigned = 0x60,
    BelowSigned = 0xc0,
}

/// Classes of instructions, and what an operand is.
const LOAD: u8 = 0x00;
const LOAD_REGISTER: u8 = 0x61;
const STORE_REGISTER: u8 = 0x63;
const ALU64: u8 = 0x07;
const ALU32: u8 = 0x04;
const JUMP: u8 = 0x05;
const JUMP32: u8 = 0x06;
const BY_REGISTER: u8 = 0x08;
const SWAP: u8 = 0xd0;
const NEGATE: u8 = 0x80;
const CALL: u8 = 0x80;
const EXIT: u8 = 0x90;
/// The immediate is the descriptor of a map.
const PSEUDO_MAP: Register = Register(1);

impl Assembler {
    /// A label that is placed later.
    pub(crate) fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Has `label` stand here.
    pub(crate) fn place(&mut self, label: Label) {
        self.labels[label.0] = Some(self.code.len());
    }

    /// Puts what is at `from + offset` into `to`, with zeros above it.
    pub(crate) fn load(&mut self, width: Width, to: Register, from: Register, offset: usize) {
        self.put(LOAD_REGISTER | width as u8, to, from, place_of(offset), 0);
    }

    /// Puts what is on the stack, so many bytes before its end, into `to`.
    pub(crate) fn load_stack(&mut self, width: Width, to: Register, before_end: usize) {
        self.put(LOAD_REGISTER | width as u8, to, R10, -place_of(before_end), 0);
    }

    /// Puts `from` on the stack, so many bytes before its end.
    pub(crate) fn store_stack(&mut self, width: Width, before_end: usize, from: Register) {
        self.put(STORE_REGISTER | width as u8, R10, from, -place_of(before_end), 0);
    }

    /// Puts `from` to where `to` points.
    pub(crate) fn store(&mut self, width: Width, to: Register, from: Register) {
        self.put(STORE_REGISTER | width as u8, to, from, 0, 0);
    }

    pub(crate) fn set(&mut self, to: Register, value: i32) {
        self.operate(Operation::Set, to, value);
    }

    pub(crate) fn copy(&mut self, to: Register, from: Register) {
        self.operate_by(Operation::Set, to, from);
    }

    pub(crate) fn operate(&mut self, operation: Operation, to: Register, value: i32) {
        self.put(ALU64 | operation as u8, to, R0, 0, value);
    }

    pub(crate) fn operate_by(&mut self, operation: Operation, to: Register, from: Register) {
        self.put(ALU64 | operation as u8 | BY_REGISTER, to, from, 0, 0);
    }

    pub(crate) fn negate(&mut self, to: Register) {
        self.put(ALU64 | NEGATE, to, R0, 0, 0);
    }

    /// Takes the lowest `bits` of `to`, 16, 32 or 64, as they are ordered in a packet, for a number.
    pub(crate) fn order(&mut self, to: Register, bits: u8, is_big_endian: bool) {
        let order = if is_big_endian { BY_REGISTER } else { 0 };
        self.put(ALU32 | SWAP | order, to, R0, 0, bits.into());
    }

    /// Sets all 64 bits, by two instructions.
    pub(crate) fn set_wide(&mut self, to: Register, value: u64) {
        self.put(LOAD | Width::W64 as u8, to, R0, 0, value as i32);
        self.put(0, R0, R0, 0, (value >> 32) as i32);
    }

    /// Sets it to the map of a descriptor, by two instructions.
    pub(crate) fn set_map(&mut self, to: Register, descriptor: i32) {
        self.put(LOAD | Width::W64 as u8, to, PSEUDO_MAP, 0, descriptor);
        self.put(0, R0, R0, 0, 0);
    }

    pub(crate) fn jump(&mut self, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.put(JUMP, R0, R0, 0, 0);
    }

    /// Jumps by how `to` compares with `value`, whose sign is extended to 64 bits.
    pub(crate) fn jump_if(&mut self, to: Register, when: When, value: i32, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.put(JUMP | when as u8, to, R0, 0, value);
    }

    /// Jumps by how the lowest 32 bits of `to` compare with `value`.
    pub(crate) fn jump_if_word(&mut self, to: Register, when: When, value: u32, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.put(JUMP32 | when as u8, to, R0, 0, value.cast_signed());
    }

    /// Jumps by how `to` compares with `from`.
    pub(crate) fn jump_if_by(&mut self, to: Register, when: When, from: Register, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.put(JUMP | when as u8 | BY_REGISTER, to, from, 0, 0);
    }

    /// Calls a helper of the kernel by its number.
    pub(crate) fn call(&mut self, helper: i32) {
        self.put(JUMP | CALL, R0, R0, 0, helper);
    }

    pub(crate) fn exit(&mut self) {
        self.put(JUMP | EXIT, R0, R0, 0, 0);
    }

    /// The instructions, eight bytes each, in the machine's byte order.
    pub(crate) fn finish(mut self) -> Vec<u64> {
        for (at, label) in &self.jumps {
            let target = self.labels[label.0].expect("each label that is jumped to is placed");
            // Counted from the instruction behind it.
            let distance = target as i64 - *at as i64 - 1;
            self.code[*at].offset =
                distance.try_into().expect("a filter's bounds keep its program short");
        }
        self.code.into_iter().map(Instruction::encode).collect()
    }

    fn put(&mut self, code: u8, to: Register, from: Register, offset: i16, immediate: i32) {
        self.code.push(Instruction { code, to, from, offset, immediate });
    }
}

impl Instruction {
    fn encode(self) -> u64 {
        // Bit fields of C: the first is the lower one of a little endian byte.
        let registers = match cfg!(target_endian = "big") {
            true => self.to.0 << 4 | self.from.0,
            false => self.from.0 << 4 | self.to.0,
        };
        let [o0, o1] = self.offset.to_ne_bytes();
        let [i0, i1, i2, i3] = self.immediate.to_ne_bytes();
        u64::from_ne_bytes([self.code, registers, o0, o1, i0, i1, i2, i3])
    }
}

fn place_of(offset: usize) -> i16 {
    i16::try_from(offset).expect("packets and the stack are looked at near their begin")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes as `llvm-objdump` shows them for a little endian machine.
    fn bytes(program: Assembler) -> Vec<[u8; 8]> {
        let native = |word: u64| Instruction::bytes_of(word);
        program.finish().into_iter().map(native).collect()
    }

    impl Instruction {
        fn bytes_of(word: u64) -> [u8; 8] {
            word.to_ne_bytes()
        }
    }

    #[test]
    fn instructions_are_what_the_standard_says() {
        if cfg!(target_endian = "big") {
            println!("skipped: the bytes below are those of a little endian machine");
            return;
        }
        let mut program = Assembler::default();
        let end = program.label();
        program.load(Width::W32, R6, R1, 4); // r6 = *(u32 *)(r1 + 4)
        program.load(Width::W16, R1, R8, 12); // r1 = *(u16 *)(r8 + 12)
        program.order(R1, 16, true); // r1 = be16 r1
        program.jump_if(R1, When::NotEqual, 0x800, end); // if r1 != 2048 goto +6
        program.set_wide(R2, 0x1_0000_0002); // r2 = 4294967298 ll
        program.jump_if_by(R1, When::AboveSigned, R2, end); // if r1 s> r2 goto +3
        program.store_stack(Width::W32, 4, R6); // *(u32 *)(r10 - 4) = r6
        program.set_map(R1, 3); // r1 = map 3 ll
        program.place(end);
        program.operate(Operation::ShiftRightSigned, R1, 48); // r1 s>>= 48
        program.negate(R1); // r1 = -r1
        program.call(1);
        program.exit();
        assert_eq!(
            bytes(program),
            [
                [0x61, 0x16, 4, 0, 0, 0, 0, 0],
                [0x69, 0x81, 12, 0, 0, 0, 0, 0],
                [0xdc, 0x01, 0, 0, 16, 0, 0, 0],
                [0x55, 0x01, 6, 0, 0, 8, 0, 0],
                [0x18, 0x02, 0, 0, 2, 0, 0, 0],
                [0, 0, 0, 0, 1, 0, 0, 0],
                [0x6d, 0x21, 3, 0, 0, 0, 0, 0],
                [0x63, 0x6a, 0xfc, 0xff, 0, 0, 0, 0],
                [0x18, 0x11, 0, 0, 3, 0, 0, 0],
                [0, 0, 0, 0, 0, 0, 0, 0],
                [0xc7, 0x01, 0, 0, 48, 0, 0, 0],
                [0x87, 0x01, 0, 0, 0, 0, 0, 0],
                [0x85, 0, 0, 0, 1, 0, 0, 0],
                [0x95, 0, 0, 0, 0, 0, 0, 0],
            ]
        );
    }
}
