"""Mathematics as MathML, which browsers draw by themselves."""

import re

from math_core import LatexError, LatexToMathML

from attnlab.errors import UserError

_CONVERTER = LatexToMathML(fancy_error=False)
_NUMBERED = re.compile(r"(\\(?:begin|end)\{(?:align|equation|gather|multline))\}")


def mathml(tex: str, *, display: bool = False) -> str:
    """A formula in TeX as a ``<math>`` element, set on lines of its own if ``display``.

    Raises:
        UserError: the TeX cannot be read.
    """
    # Counted formula by formula, every equation of a page would be number 1.
    unnumbered = _NUMBERED.sub(r"\1*}", tex.strip())
    try:
        return _CONVERTER.convert_with_local_state(unnumbered, displaystyle=display)
    except LatexError as error:
        reason = " ".join(str(error).split())
        raise UserError(f"cannot read the formula {' '.join(tex.split())!r}: {reason}") from error
