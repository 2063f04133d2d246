"""How the bundled minis are trained."""
