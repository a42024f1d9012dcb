//! Rows of neurons of one group, wherever they stand.

use crate::block::{GROUP, WeightType};
use crate::check;
use crate::soon::Soon;
use crate::view::{Order, Rows};

/// Rows of one matrix of up to [`GROUP`] neurons: gate or up rows, interleaved, for
/// [`dot_group`](crate::Kernels::dot_group); down columns of one group, each stored as a row over
/// the outputs, in order or zipped, for [`down_group`](crate::Kernels::down_group) and
/// [`down_group_many`](crate::Kernels::down_group_many).
///
/// Dead neurons may be left out; the order of down columns is the image's.
#[derive(Debug, Clone, Copy)]
pub struct NeuronRows<'a> {
    ty: WeightType,
    cols: usize,
    len: usize,
    codes: [&'a [u8]; GROUP],
    scales: [&'a [u8]; GROUP],
    /// How the codes stand, as far as rows that were added tell.
    order: Option<Order>,
    /// Codes of a whole group, instead of `codes`.
    zipped: Option<&'a [u8]>,
    soon: Soon<'a>,
}

impl<'a> NeuronRows<'a> {
    /// No neurons yet; their rows have `cols` columns.
    ///
    /// # Panics
    /// If there are no columns, or these are not whole blocks of a quantised type.
    #[inline]
    pub fn new(ty: WeightType, cols: usize) -> Self {
        check::cols(ty, cols);
        NeuronRows {
            ty,
            cols,
            len: 0,
            codes: [&[]; GROUP],
            scales: [&[]; GROUP],
            order: None,
            zipped: None,
            soon: Soon::default(),
        }
    }

    /// Asks memory for `soon`, which will be needed afterwards, while these are computed.
    #[inline]
    pub fn then(&mut self, soon: impl Into<Soon<'a>>) {
        self.soon = soon.into();
    }

    /// What is asked for while these neurons are computed; nothing: what follows them.
    #[inline]
    pub(crate) fn soon(&self) -> Soon<'a> {
        self.soon
    }

    /// Adds one neuron, whose codes stand as those of the others do.
    ///
    /// # Panics
    /// If the group is full or a length does not fit.
    #[inline]
    pub fn push(&mut self, codes: &'a [u8], scales: &'a [u8]) {
        assert_eq!(codes.len(), self.ty.code_bytes(self.cols));
        assert_eq!(scales.len(), self.ty.scale_bytes(self.cols));
        assert!(self.len < GROUP, "a group has {GROUP} neurons");
        debug_assert!(self.zipped.is_none());
        self.codes[self.len] = codes;
        self.scales[self.len] = scales;
        self.len += 1;
    }

    /// Adds all of `rows`. Zipped ones are a whole group.
    ///
    /// # Panics
    /// If the group is too small, or types, sizes or the order of codes differ.
    #[inline]
    pub fn extend(&mut self, rows: &Rows<'a>) {
        assert_eq!((rows.ty(), rows.cols()), (self.ty, self.cols));
        let len = self.len + rows.rows();
        assert!(len <= GROUP, "a group has {GROUP} neurons");
        assert!(
            self.has_order(rows.order()),
            "{:?} rows among {:?} ones",
            rows.order(),
            self.order
        );
        self.order = rows.order();
        if rows.are_zipped() {
            assert_eq!(
                (self.len, rows.rows()),
                (0, GROUP),
                "zipped rows are a group"
            );
            self.zipped = Some(rows.group(0));
        }
        for run in rows.runs() {
            let slots = self.len + run.start..self.len + run.end;
            if !rows.are_zipped() {
                let codes = rows.run_codes(&run);
                for (slot, codes) in self.codes[slots.clone()].iter_mut().zip(codes) {
                    *slot = codes;
                }
            }
            let scales = rows.run_scales(&run);
            for (slot, scales) in self.scales[slots].iter_mut().zip(scales) {
                *slot = scales;
            }
        }
        self.len = len;
    }

    /// Type of the weights.
    #[inline]
    pub fn ty(&self) -> WeightType {
        self.ty
    }

    /// Number of columns.
    #[inline]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Neurons that were added.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// True unless rows that were added stand in another order than `order`.
    #[inline]
    pub(crate) fn has_order(&self, order: Option<Order>) -> bool {
        self.order.is_none() || self.order == order
    }

    /// Codes of each neuron that was added; not of zipped ones.
    #[inline]
    pub(crate) fn codes(&self) -> &[&'a [u8]] {
        debug_assert!(self.zipped.is_none());
        &self.codes[..self.len]
    }

    /// Codes of a whole group that is zipped.
    #[inline]
    pub(crate) fn zipped(&self) -> Option<&'a [u8]> {
        self.zipped
    }

    /// Scales of each neuron that was added.
    #[inline]
    pub(crate) fn scales(&self) -> &[&'a [u8]] {
        &self.scales[..self.len]
    }
}
