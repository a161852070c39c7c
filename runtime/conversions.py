"""Float conversions that compiled code calls where the CPU has no instruction for them.

A compiler's runtime library usually has these; this process has none, so they are LLVM IR here,
compiled once and known by their usual names from then on. All round to nearest, ties to even.
A narrowing from double first goes to float with rounding to odd, which keeps what the second
rounding needs to know (Boldo and Melquiond, "When double rounding is odd", 2004).
"""

from __future__ import annotations

CONVERSIONS = (
    "__truncsfbf2",
    "__truncdfbf2",
    "__truncsfhf2",
    "__truncdfhf2",
    "__extendhfsf2",
)

CONVERSIONS_IR = r"""
define bfloat @__truncsfbf2(float %x) {
  %bits = bitcast float %x to i32
  %high = lshr i32 %bits, 16
  %odd = and i32 %high, 1
  %half = add i32 %odd, 32767
  %up = add i32 %bits, %half
  %rounded = lshr i32 %up, 16
  %quiet = or i32 %high, 64
  %nan = fcmp uno float %x, %x
  %wide = select i1 %nan, i32 %quiet, i32 %rounded
  %narrow = trunc i32 %wide to i16
  %result = bitcast i16 %narrow to bfloat
  ret bfloat %result
}

define internal float @round_to_odd(double %x) {
  %near = fptrunc double %x to float
  %back = fpext float %near to double
  %exact = fcmp ueq double %back, %x
  %size = call double @llvm.fabs.f64(double %x)
  %near.size = call double @llvm.fabs.f64(double %back)
  %above = fcmp ogt double %near.size, %size
  %bits = bitcast float %near to i32
  %step = zext i1 %above to i32
  %below = sub i32 %bits, %step
  %odd = or i32 %below, 1
  %chosen = select i1 %exact, i32 %bits, i32 %odd
  %result = bitcast i32 %chosen to float
  ret float %result
}

define bfloat @__truncdfbf2(double %x) {
  %odd = call float @round_to_odd(double %x)
  %result = call bfloat @__truncsfbf2(float %odd)
  ret bfloat %result
}

define half @__truncsfhf2(float %x) {
  %bits = bitcast float %x to i32
  %size = and i32 %bits, 2147483647
  ; a half that is subnormal: adding 0.5 leaves its 10 bits at the end, rounded
  %value = bitcast i32 %size to float
  %shifted = fadd float %value, 0x3FE0000000000000
  %shifted.bits = bitcast float %shifted to i32
  %small = sub i32 %shifted.bits, 1056964608
  ; a normal one: move the exponent from bias 127 to 15, and round 13 bits away
  %last = lshr i32 %size, 13
  %odd = and i32 %last, 1
  %rebiased = sub i32 %size, 939524096
  %half.up = add i32 %rebiased, 4095
  %up = add i32 %half.up, %odd
  %normal = lshr i32 %up, 13
  %is.small = icmp ult i32 %size, 947912704
  %finite = select i1 %is.small, i32 %small, i32 %normal
  ; from 65536 on infinity, and every NaN a quiet one that keeps its high bits
  %is.large = icmp uge i32 %size, 1199570944
  %mantissa = and i32 %last, 1023
  %quiet = or i32 %mantissa, 32256
  %is.nan = icmp ugt i32 %size, 2139095040
  %special = select i1 %is.nan, i32 %quiet, i32 31744
  %unsigned = select i1 %is.large, i32 %special, i32 %finite
  %top = lshr i32 %bits, 16
  %sign = and i32 %top, 32768
  %wide = or i32 %unsigned, %sign
  %narrow = trunc i32 %wide to i16
  %result = bitcast i16 %narrow to half
  ret half %result
}

define half @__truncdfhf2(double %x) {
  %odd = call float @round_to_odd(double %x)
  %result = call half @__truncsfhf2(float %odd)
  ret half %result
}

define float @__extendhfsf2(half %x) {
  %narrow = bitcast half %x to i16
  %bits = zext i16 %narrow to i32
  %size = and i32 %bits, 32767
  %moved = shl i32 %size, 13
  %normal = add i32 %moved, 939524096
  ; a subnormal: its bits under the exponent of 2^-14, less 2^-14
  %under = add i32 %moved, 947912704
  %under.value = bitcast i32 %under to float
  %small.value = fsub float %under.value, 0x3F10000000000000
  %small = bitcast float %small.value to i32
  %special = or i32 %moved, 2139095040
  %is.small = icmp ult i32 %size, 1024
  %finite = select i1 %is.small, i32 %small, i32 %normal
  %is.special = icmp uge i32 %size, 31744
  %unsigned = select i1 %is.special, i32 %special, i32 %finite
  %sign.bit = and i32 %bits, 32768
  %sign = shl i32 %sign.bit, 16
  %wide = or i32 %unsigned, %sign
  %result = bitcast i32 %wide to float
  ret float %result
}
"""
