//! What the analysis knows of one instruction, the same for all architectures.

/// Set of registers, one bit each; the numbering belongs to the architecture's decoder.
pub(super) type Regs = u128;

/// Number of the condition flags in [`Regs`], the same for all architectures.
pub(super) const FLAGS: u32 = 40;

/// Bit of register `number`; 0 for a number that no register has.
pub(super) const fn bit(number: u32) -> Regs {
    if number < 128 { 1 << number } else { 0 }
}

/// Numbers of the registers in a set.
pub(super) fn numbers(mut regs: Regs) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        (regs != 0).then(|| {
            let number = regs.trailing_zeros();
            regs &= regs - 1;
            number
        })
    })
}

/// Where control goes after an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    /// To the next instruction.
    Next,
    /// To the target or to the next instruction.
    Branch(u64),
    /// To the target.
    Jump(u64),
    /// To an address that the instruction does not tell.
    Indirect,
    /// Into a function and then to the next instruction. By the address of the function, or of the pointer to it.
    Call(Option<u64>),
    /// Back to the caller.
    Return,
    /// Nowhere: the program ends or the bytes are no instruction.
    Trap,
}

/// Whether an instruction tells the core that it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Relax {
    /// It does not.
    No,
    /// It has no other use: PAUSE, YIELD, WFE.
    Wait,
    /// It has other uses too: ISB.
    Maybe,
}

/// The part of an instruction that the shape of loops depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outline {
    pub(super) address: u64,
    pub(super) len: u8,
    pub(super) flow: Flow,
    pub(super) relax: Relax,
    /// It does nothing; padding between blocks consists of these.
    pub(super) nop: bool,
}

impl Outline {
    /// Address of the instruction that follows in memory.
    pub(super) fn next(&self) -> u64 {
        self.address.wrapping_add(u64::from(self.len))
    }
}

/// What an instruction does to registers and memory.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Effect {
    /// Registers, flags included, that the written values depend on.
    pub(super) reads: Regs,
    pub(super) writes: Regs,
    pub(super) access: Option<Access>,
    /// The written value is the read one, moved, widened, limited, or plus or
    /// times something: what a counter of attempts does.
    pub(super) counts: bool,
    /// The written value is the read one: a move between registers and stack slots.
    pub(super) moves: bool,
    /// The written value is one of two that are read.
    pub(super) selects: bool,
    /// The written value is the address of a place in the own stack frame: stack or frame pointer
    /// and displacement.
    pub(super) frame_address: Option<(u32, i64)>,
    /// Does more than the other fields tell: a system call, an unknown call,
    /// vector arithmetic on arm64, ...
    pub(super) opaque: bool,
    /// Writes the value of a clock or of a random generator.
    pub(super) tick: bool,
    /// Writes whether an exclusive store failed.
    pub(super) store_status: bool,
    /// Compares only if the flags say so: its result is the conjunction of two conditions.
    pub(super) conjunction: bool,
    /// A call of a function that relaxes.
    pub(super) waits: bool,
    /// A branch taken if a register is nonzero (`Some(true)`) or zero (`Some(false)`).
    pub(super) taken_if_nonzero: Option<bool>,
}

impl Effect {
    /// That of an instruction of which nothing is known.
    pub(super) fn unknown() -> Effect {
        Effect {
            opaque: true,
            ..Effect::default()
        }
    }

    /// Whether a loop with this in it certainly does more than to poll.
    pub(super) fn works(&self) -> bool {
        let stores = |access: Access| {
            access.slot.is_none() && matches!(access.kind, Kind::Store | Kind::Update)
        };
        self.opaque || self.access.is_some_and(stores)
    }
}

/// One access to memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Access {
    pub(super) kind: Kind,
    /// Registers that the address depends on, without the stack base of `slot`.
    pub(super) address: Regs,
    /// The place in the own stack frame, where the address is one.
    pub(super) slot: Option<Slot>,
    /// The address is a base plus a register.
    pub(super) indexed: bool,
    /// Distance from the register and width, where the address is a register plus a constant.
    pub(super) offset: Option<(i64, u32)>,
    /// Registers that an atomic operation compares with or stores.
    pub(super) operands: Regs,
}

/// Kinds of memory access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Load,
    Store,
    /// Loads, computes and stores, not atomically.
    Update,
    /// Atomic read-modify-write that does no more when repeated with the same
    /// operands: exchange, compare-exchange, set or clear bits.
    Idempotent,
    /// Any other atomic read-modify-write: fetch-add and its like.
    Accumulate,
    /// The store of a load-linked/store-conditional pair.
    StoreExclusive,
}

impl Kind {
    pub(super) fn loads(self) -> bool {
        !matches!(self, Kind::Store | Kind::StoreExclusive)
    }

    pub(super) fn is_atomic(self) -> bool {
        matches!(
            self,
            Kind::Idempotent | Kind::Accumulate | Kind::StoreExclusive
        )
    }
}

/// A place in the own stack frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    /// Register that the place is relative to: stack or frame pointer.
    pub(super) base: u32,
    pub(super) displacement: i64,
    pub(super) bytes: u32,
}

impl Slot {
    pub(super) fn end(&self) -> i64 {
        self.displacement.saturating_add(i64::from(self.bytes))
    }
}
